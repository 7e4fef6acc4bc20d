// Values whose elements are of two kinds, as dropout masks are: what drawing them again would take
// is much more than what a bit for each element takes. Exact, for the kinds are bit patterns.
//
// Calls show what their results are like: the first of a form is looked at in a few places, and
// what seems to be of two kinds costs little from then on, so that it goes early. All elements are
// looked at when it goes.
#include <reprise/error.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "libtorch/memory/counting_allocator.h"
#include "tape/own_time.h"
#include "tape/tape.h"

namespace reprise::tape {

using libtorch::ManagedMemory;

// Paranoid steps are there to show that everything can be computed again. What lies behind the
// bytes that an operator has set may be set later, and need not be of these kinds.
bool Tape::can_be_packed(const Value& value) const {
  return side_ == nullptr && !options_.paranoid && has_kinds(value.width) &&
         value.defined == value.size && value.size % value.width == 0;
}

namespace {

bool is_of_two_kinds(const Value& value) {
  const OwnTime own;
  const std::int64_t elements = value.size / value.width;
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(bytes_of_bits(elements)));
  return pack_bits(ManagedMemory::memory_of(*value.cell).get(), elements, value.width, bits.data())
      .has_value();
}

}  // namespace

void Tape::look_for_kinds(Producer& producer) {
  auto& learnt = producer.call.form().learnt;
  std::uint8_t bit = 1;
  for (const Producer::Output& output : producer.outputs) {
    Value& value = *output.value;
    if (bit != 0 && may_drop(value) && can_be_packed(value)) {
      if ((learnt.looked_at & bit) == 0) {
        const void* const data = ManagedMemory::memory_of(*value.cell).get();
        if (may_be_of_two_kinds(data, value.defined / value.width, value.width)) {
          learnt.two_kinds |= bit;
        }
        learnt.looked_at |= bit;
      }
      // A log is of what would be packed, and all elements are looked at only when the value goes.
      if (log && (learnt.two_kinds & bit) != 0 && !is_of_two_kinds(value)) {
        learnt.two_kinds &= static_cast<std::uint8_t>(~bit);
      }
      value.kind_bit = learnt.two_kinds & bit;
    }
    bit = static_cast<std::uint8_t>(bit << 1);
  }
}

// Of what is about to be dropped; `memory` is free if this is true. False where it is lost: then it
// may be free, too.
bool Tape::pack(Value& value, c10::DataPtr& memory) {
  if (value.packed != nullptr) {
    memory.clear();
    return true;
  }
  if (value.kind_bit == 0) return false;
  if (costs_.seconds_to_pack(value.size) >= seconds_to_make(value)) {
    costs_.declined_packing();
  } else if (pack_now(value, memory)) {
    return true;
  }
  // From now on it costs what it costs.
  value.kind_bit = 0;
  value.own_cost = value.producer->again;
  return false;
}

bool Tape::pack_now(Value& value, c10::DataPtr& memory) {
  const WorkWatch watch;
  const std::int64_t elements = value.size / value.width;
  const auto bytes = static_cast<std::size_t>(bytes_of_bits(elements));
  try {
    // Room for the bits is there only when the memory is free.
    const auto bits = std::make_unique<std::uint8_t[]>(bytes);
    const auto kinds = pack_bits(memory.get(), elements, value.width, bits.get());
    const double seconds = watch.seconds();
    report.pack_time += Seconds(seconds);
    if (!kinds) {
      auto& learnt = value.producer->call.form().learnt;
      learnt.two_kinds &= static_cast<std::uint8_t>(~value.kind_bit);
      return false;
    }
    costs_.packed(value.size, seconds);
    auto packed = std::make_unique<Packed>();
    memory.clear();
    packed->bits = libtorch::allocate_if_it_fits(bytes);
    if (!packed->bits) return false;
    std::copy_n(bits.get(), bytes, static_cast<std::uint8_t*>(packed->bits.get()));
    packed->kinds = *kinds;
    keep_bits(value, std::move(packed));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool Tape::unpack(Value& value) {
  if (value.packed == nullptr) return false;
  const WorkWatch watch;
  // To make room for the value its bits must not go.
  std::unique_ptr<Packed> packed = take_bits(value);
  c10::Storage storage;
  try {
    storage = new_storage(value.size);
  } catch (const BudgetError&) {
    // The bits are free now, and to make it again may take less.
    note_dropped(value);
    return false;
  } catch (...) {
    keep_bits(value, std::move(packed));
    throw;
  }
  unpack_bits(static_cast<const std::uint8_t*>(packed->bits.get()), packed->kinds,
              value.size / value.width, value.width, storage.mutable_data());
  keep_bits(value, std::move(packed));
  ++report.unpacked;
  const double seconds = watch.seconds();
  report.pack_time += Seconds(seconds);
  costs_.unpacked(value.size, seconds);
  give_bytes(value, std::move(storage));
  return true;
}

void Tape::keep_bits(Value& value, std::unique_ptr<Packed> bits) {
  bits->place = packed_.size();
  packed_.push_back(&value);
  packed_bytes_ += libtorch::counted_bytes(bits->bits);
  value.packed = std::move(bits);
}

std::unique_ptr<Packed> Tape::take_bits(Value& value) {
  Value* const last = packed_.back();
  packed_[value.packed->place] = last;
  last->packed->place = value.packed->place;
  packed_.pop_back();
  packed_bytes_ -= libtorch::counted_bytes(value.packed->bits);
  return std::move(value.packed);
}

// Rather those of a value that has its bytes as well.
bool Tape::drop_bits() {
  if (packed_.empty()) return false;
  const auto found = std::ranges::find_if(packed_, &Value::has_bytes);
  Value& value = found != packed_.end() ? **found : *packed_.front();
  take_bits(value);
  if (!value.has_bytes()) note_dropped(value);
  return true;
}

}  // namespace reprise::tape
