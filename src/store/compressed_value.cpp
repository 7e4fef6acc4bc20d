#include "store/compressed_value.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "core/bfloat16.h"
#include "core/block_codes.h"
#include "core/block_spread.h"
#include "core/sparse.h"
#include "core/two_kinds.h"

namespace reprise::store {
namespace {

// Elements that are worked on at once, a multiple of 8 so that each piece has bytes of its own in
// which there is a bit for each element.
constexpr std::int64_t kPiece = 65536;

constexpr std::int64_t pieces_of(std::int64_t elements) { return (elements + kPiece - 1) / kPiece; }

// Calls `f` with the number of a piece, its first element and how many it has.
template <class F>
void each_piece(std::int64_t elements, F&& f) {
  at::parallel_for(0, pieces_of(elements), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      f(i, i * kPiece, std::min(kPiece, elements - i * kPiece));
    }
  });
}

at::Tensor new_bytes(std::int64_t count) { return at::empty({count}, at::kByte); }
std::uint8_t* bytes_in(const at::Tensor& memory) {
  return static_cast<std::uint8_t*>(memory.mutable_data_ptr());
}

std::optional<FloatType> float_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return FloatType::kFloat;
    case at::kDouble:
      return FloatType::kDouble;
    case at::kHalf:
      return FloatType::kHalf;
    case at::kBFloat16:
      return FloatType::kBfloat16;
    default:
      return std::nullopt;
  }
}

// A flat tensor's elements as bit patterns.
struct Patterns {
  explicit Patterns(const at::Tensor& flat)
      : data(static_cast<const std::uint8_t*>(flat.const_data_ptr())),
        elements(flat.numel()),
        width(static_cast<int>(flat.itemsize())) {}

  const void* at(std::int64_t element) const { return data + element * width; }
  bool saves_a_quarter(std::int64_t bytes) const { return bytes <= elements * width / 4 * 3; }

  const std::uint8_t* data;
  std::int64_t elements;
  int width;
};

// The mask: what the bits of each piece stand for, and the bits.
struct MaskLayout {
  explicit MaskLayout(std::int64_t elements)
      : bits(pieces_of(elements) * static_cast<std::int64_t>(sizeof(TwoKinds))),
        bytes(bits + bytes_of_bits(elements)) {}
  std::int64_t bits, bytes;
};

at::Tensor to_mask(const Patterns& all) {
  const MaskLayout layout(all.elements);
  if (!has_kinds(all.width) || !all.saves_a_quarter(layout.bytes)) return {};
  for (std::int64_t i = 0; i < all.elements; i += kPiece) {
    if (!may_be_of_two_kinds(all.at(i), std::min(kPiece, all.elements - i), all.width)) return {};
  }
  const at::Tensor memory = new_bytes(layout.bytes);
  auto* const kinds = reinterpret_cast<TwoKinds*>(bytes_in(memory));
  std::uint8_t* const bits = bytes_in(memory) + layout.bits;
  std::atomic<bool> others = false;
  each_piece(all.elements, [&](std::int64_t piece, std::int64_t first, std::int64_t count) {
    if (others) return;
    const auto found = pack_bits(all.at(first), count, all.width, bits + first / 8);
    if (found) {
      kinds[piece] = *found;
    } else {
      others = true;
    }
  });
  return others ? at::Tensor() : memory;
}

void from_mask(const at::Tensor& memory, std::int64_t elements, int width, std::uint8_t* data) {
  const auto* const kinds = reinterpret_cast<const TwoKinds*>(bytes_in(memory));
  const std::uint8_t* const bits = bytes_in(memory) + MaskLayout(elements).bits;
  each_piece(elements, [&](std::int64_t piece, std::int64_t first, std::int64_t count) {
    unpack_bits(bits + first / 8, kinds[piece], count, width, data + first * width);
  });
}

// The sparse form: where in the kept elements each piece's begin, the bits, the kept elements, and
// one more that is read and not used.
struct SparseLayout {
  explicit SparseLayout(std::int64_t elements)
      : bits(pieces_of(elements) * static_cast<std::int64_t>(sizeof(std::int64_t))),
        kept(bits + (bytes_of_bits(elements) + 7) / 8 * 8) {}
  std::int64_t bytes(std::int64_t count, int width) const { return kept + (count + 1) * width; }
  std::int64_t bits, kept;
};

// If it takes no more than `most` bytes.
at::Tensor to_sparse(const Patterns& all, std::int64_t most) {
  if (!has_kinds(all.width)) return {};
  // Counting reads everything: not if a sample is far off.
  constexpr std::int64_t kSample = 4096;
  constexpr double kFarOff = 1.2;
  const SparseLayout layout(all.elements);
  const double sampled = sampled_nonzero(all.data, all.elements, all.width, kSample);
  const double expected = sampled * static_cast<double>(all.elements * all.width);
  if (expected + static_cast<double>(layout.kept) > kFarOff * static_cast<double>(most)) return {};
  c10::SmallVector<std::int64_t, 64> begin(static_cast<std::size_t>(pieces_of(all.elements)));
  each_piece(all.elements, [&](std::int64_t piece, std::int64_t first, std::int64_t count) {
    begin[static_cast<std::size_t>(piece)] = count_nonzero(all.at(first), count, all.width);
  });
  std::int64_t kept = 0;
  for (std::int64_t& each : begin) {
    const std::int64_t count = std::exchange(each, kept);
    kept += count;
  }
  if (layout.bytes(kept, all.width) > most) return {};
  const at::Tensor memory = new_bytes(layout.bytes(kept, all.width));
  std::uint8_t* const out = bytes_in(memory);
  std::copy(begin.begin(), begin.end(), reinterpret_cast<std::int64_t*>(out));
  std::fill_n(out + layout.kept + kept * all.width, all.width, std::uint8_t{0});
  each_piece(all.elements, [&](std::int64_t piece, std::int64_t first, std::int64_t count) {
    pack_nonzero(all.at(first), count, all.width, out + layout.bits + first / 8,
                 out + layout.kept + begin[static_cast<std::size_t>(piece)] * all.width);
  });
  return memory;
}

void from_sparse(const at::Tensor& memory, std::int64_t elements, int width, std::uint8_t* data) {
  const SparseLayout layout(elements);
  const std::uint8_t* const in = bytes_in(memory);
  const auto* const begin = reinterpret_cast<const std::int64_t*>(in);
  each_piece(elements, [&](std::int64_t piece, std::int64_t first, std::int64_t count) {
    unpack_nonzero(in + layout.bits + first / 8, in + layout.kept + begin[piece] * width, count,
                   width, data + first * width);
  });
}

BlockCode code_of(FloatType type, CompressedForm form, std::int64_t block, std::int64_t elements) {
  return {.type = type,
          .bits = form == CompressedForm::kInt8 ? 8 : 4,
          .block = block,
          .elements = elements};
}

// Calls `f` with the first block of some and that after the last.
template <class F>
void each_blocks(const BlockCode& code, F&& f) {
  const std::int64_t together = std::max<std::int64_t>(1, kPiece / code.block);
  const std::int64_t blocks = code.blocks();
  at::parallel_for(0, (blocks + together - 1) / together, 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     f(begin * together, std::min(end * together, blocks));
                   });
}

// A lossy form and what it takes; no bytes where there is none.
struct Lossy {
  CompressedForm form = CompressedForm::kUncompressed;
  FloatType type = FloatType::kFloat;
  std::int64_t bytes = 0;
};

Lossy lossy_form(const Patterns& all, at::ScalarType dtype, Compression compression,
                 std::int64_t block) {
  const auto type = float_type(dtype);
  if (!type || compression == Compression::kExact) return {};
  Lossy lossy{.form = CompressedForm::kBfloat16, .type = *type, .bytes = 2 * all.elements};
  if (compression != Compression::kBfloat16) {
    lossy.form = compression == Compression::kInt8 ? CompressedForm::kInt8 : CompressedForm::kInt4;
    lossy.bytes = code_of(*type, lossy.form, block, all.elements).bytes();
  }
  return all.saves_a_quarter(lossy.bytes) ? lossy : Lossy{};
}

at::Tensor to_lossy(const Patterns& all, const Lossy& lossy, std::int64_t block,
                    std::uint64_t stream) {
  const at::Tensor memory = new_bytes(lossy.bytes);
  std::uint8_t* const out = bytes_in(memory);
  std::atomic<bool> fits = true;
  if (lossy.form == CompressedForm::kBfloat16) {
    auto* const rounded = reinterpret_cast<std::uint16_t*>(out);
    each_piece(all.elements, [&](std::int64_t, std::int64_t first, std::int64_t count) {
      if (!fits) return;
      if (!round_to_bfloat16(lossy.type, all.at(first), count, rounded + first)) fits = false;
    });
  } else {
    const BlockCode code = code_of(lossy.type, lossy.form, block, all.elements);
    each_blocks(code, [&](std::int64_t first, std::int64_t last) {
      if (!fits) return;
      if (!encode(code, all.data, first, last, stream, out)) fits = false;
    });
  }
  return fits ? memory : at::Tensor();
}

void from_lossy(const CompressedValue& value, std::uint8_t* data) {
  const FloatType type = *float_type(value.dtype);
  const std::uint8_t* const in = bytes_in(value.memory);
  if (value.form == CompressedForm::kBfloat16) {
    const auto* const rounded = reinterpret_cast<const std::uint16_t*>(in);
    const auto width = static_cast<std::int64_t>(c10::elementSize(value.dtype));
    each_piece(value.elements, [&](std::int64_t, std::int64_t first, std::int64_t count) {
      widen_bfloat16(rounded + first, count, type, data + first * width);
    });
    return;
  }
  const BlockCode code = code_of(type, value.form, value.block, value.elements);
  each_blocks(code,
              [&](std::int64_t first, std::int64_t last) { decode(code, in, first, last, data); });
}

}  // namespace

CompressedValue compress(const at::Tensor& flat, Compression compression, std::int64_t block,
                         std::uint64_t stream) {
  const Patterns all(flat);
  CompressedValue value;
  value.dtype = flat.scalar_type();
  value.elements = all.elements;
  value.block = block;
  const auto became = [&](CompressedForm form, at::Tensor memory) {
    if (!memory.defined()) return false;
    value.form = form;
    value.memory = std::move(memory);
    return true;
  };
  const std::int64_t quarter_less = all.elements * all.width / 4 * 3;
  const Lossy lossy = lossy_form(all, value.dtype, compression, block);
  if (became(CompressedForm::kMask, to_mask(all))) return value;
  if (became(CompressedForm::kSparse,
             to_sparse(all, lossy.bytes > 0 ? lossy.bytes : quarter_less))) {
    return value;
  }
  if (lossy.bytes > 0) {
    if (became(lossy.form, to_lossy(all, lossy, block, stream))) return value;
    // Not taken before, for a lossy one was to be smaller.
    if (became(CompressedForm::kSparse, to_sparse(all, quarter_less))) return value;
  }
  value.memory = flat;
  return value;
}

at::Tensor decompress(const CompressedValue& value) {
  if (value.form == CompressedForm::kUncompressed) return value.memory;
  at::Tensor flat = at::empty({value.elements}, value.dtype);
  auto* const data = static_cast<std::uint8_t*>(flat.mutable_data_ptr());
  const int width = static_cast<int>(flat.itemsize());
  if (value.form == CompressedForm::kMask) {
    from_mask(value.memory, value.elements, width, data);
  } else if (value.form == CompressedForm::kSparse) {
    from_sparse(value.memory, value.elements, width, data);
  } else {
    from_lossy(value, data);
  }
  return flat;
}

double spread(const at::Tensor& flat, std::int64_t block) {
  return block_spread(float_type(flat.scalar_type()).value(), flat.const_data_ptr(), flat.numel(),
                      block);
}

}  // namespace reprise::store
