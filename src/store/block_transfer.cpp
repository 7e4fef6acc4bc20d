#include "store/block_transfer.h"

#include <c10/core/CPUAllocator.h>
#include <reprise/bytes.h>
#include <reprise/error.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace reprise::store {
namespace {

[[noreturn]] void fail(const BlockFile& file, const StoredValue& value, const char* done,
                       std::int64_t at, const std::string& reason) {
  throw StoreError("disk store: " + std::string(done) + " " + to_string(Bytes(value.bytes)) +
                   " at offset " + std::to_string(value.offset) + " of " + file.place() +
                   " failed after " + to_string(Bytes(at)) + ": " + reason);
}

// Moves one block by as many calls as it takes. A call may move less than it was asked to; what it
// moved of a last, partial unit is moved again, for the next call has to start aligned.
template <class Move>
void move_block(std::int64_t bytes, Move&& move) {
  for (std::int64_t done = 0; done < bytes;) {
    const auto moved = static_cast<std::int64_t>(move(done, bytes - done));
    const std::int64_t next =
        done + moved >= bytes ? bytes : (done + moved) / kBlockAlignment * kBlockAlignment;
    if (next == done) {
      throw std::runtime_error("only " + std::to_string(moved) + " of " +
                               std::to_string(bytes - done) + " bytes were moved");
    }
    done = next;
  }
}

// Calls block(position in the value, bytes of it) for each block, and reports what it throws.
template <class Block>
void each_block(const BlockFile& file, const BlockBuffer& buffer, const StoredValue& value,
                const char* done, Block&& block) {
  std::int64_t at = 0;
  try {
    for (; at < value.bytes; at += buffer.size()) {
      block(at, std::min(buffer.size(), value.bytes - at));
    }
  } catch (const std::system_error& error) {
    fail(file, value, done, at,
         error.code() == std::errc::no_space_on_device
             ? std::string(error.what()) +
                   "; free some room, give another folder, or park less (DiskStoreOptions.byte_cap)"
             : error.what());
  } catch (const std::runtime_error& error) {
    fail(file, value, done, at, error.what());
  }
}

using HashState = std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)>;

HashState start_hash() {
  HashState state(XXH3_createState(), &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  return state;
}

}  // namespace

BlockBuffer::BlockBuffer(std::int64_t bytes)
    : memory_(c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes + kBlockAlignment))),
      size_(bytes) {
  void* start = memory_.get();
  auto room = static_cast<std::size_t>(bytes + kBlockAlignment);
  data_ = static_cast<std::byte*>(std::align(static_cast<std::size_t>(kBlockAlignment),
                                             static_cast<std::size_t>(bytes), start, room));
}

std::uint64_t write_value(BlockFile& file, const BlockBuffer& buffer, const std::byte* from,
                          const StoredValue& value) {
  const HashState hash = start_hash();
  each_block(file, buffer, value, "writing", [&](std::int64_t at, std::int64_t bytes) {
    const std::int64_t padded = round_up_to_blocks(bytes);
    std::memcpy(buffer.data(), from + at, static_cast<std::size_t>(bytes));
    std::memset(buffer.data() + bytes, 0, static_cast<std::size_t>(padded - bytes));
    XXH3_64bits_update(hash.get(), buffer.data(), static_cast<std::size_t>(bytes));
    move_block(padded, [&](std::int64_t done, std::int64_t left) {
      return file.write(buffer.data() + done, static_cast<std::size_t>(left),
                        value.offset + at + done);
    });
  });
  return XXH3_64bits_digest(hash.get());
}

void read_value(BlockFile& file, const BlockBuffer& buffer, std::byte* to,
                const StoredValue& value) {
  const HashState hash = start_hash();
  each_block(file, buffer, value, "reading", [&](std::int64_t at, std::int64_t bytes) {
    move_block(round_up_to_blocks(bytes), [&](std::int64_t done, std::int64_t left) {
      return file.read(buffer.data() + done, static_cast<std::size_t>(left),
                       value.offset + at + done);
    });
    XXH3_64bits_update(hash.get(), buffer.data(), static_cast<std::size_t>(bytes));
    std::memcpy(to + at, buffer.data(), static_cast<std::size_t>(bytes));
  });
  if (XXH3_64bits_digest(hash.get()) != value.checksum) {
    fail(file, value, "reading", value.bytes,
         "the checksum is not that of what was written; the disk or something else changed it");
  }
}

}  // namespace reprise::store
