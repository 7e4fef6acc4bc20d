// Moves values between memory and a file, block by block through an aligned buffer: direct access
// to a disk needs addresses that LibTorch's memory does not have, and in the buffer a block is
// hashed while it is in the processor's cache.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

#include "store/block_file.h"

namespace reprise::store {

inline std::int64_t round_up_to_blocks(std::int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Memory for one block, from LibTorch's allocator, so that it is counted.
class BlockBuffer {
 public:
  explicit BlockBuffer(std::int64_t bytes);
  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  c10::DataPtr memory_;
  std::byte* data_;
  std::int64_t size_;
};

// A value in a file: `bytes` bytes in round_up_to_blocks(bytes) from `offset` on.
struct StoredValue {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};

// Writes `value.bytes` bytes and returns their checksum (XXH3, 64 bits). Throws StoreError.
std::uint64_t write_value(BlockFile& file, const BlockBuffer& buffer, const std::byte* from,
                          const StoredValue& value);

// Reads them back. Throws StoreError, also if the checksum differs.
void read_value(BlockFile& file, const BlockBuffer& buffer, std::byte* to,
                const StoredValue& value);

}  // namespace reprise::store
