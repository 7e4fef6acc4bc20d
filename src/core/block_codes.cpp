#include "core/block_codes.h"

#include <algorithm>

#include "core/lane_noise.h"

namespace reprise {
namespace {

// Noise has 16 bits: steps are counted in so many parts, and noise below one step is added before
// parts are cut off.
constexpr int kNoiseBits = 16;

template <class Work>
struct Scale {
  Work minimum, step;
};

template <FloatType type, int bits>
class BlockCoder {
  using L = Lanes<type>;
  using Element = typename L::Element;
  using Work = typename L::Work;
  using Four = typename L::Four;

  static constexpr int kFours = 32 / bits;  // in a group
  static constexpr std::int64_t kGroup = 4 * kFours;
  static constexpr int kLevels = (1 << bits) - 1;
  static constexpr Work kTop = static_cast<Work>(kLevels << kNoiseBits);
  // Sums and differences of two such numbers, and what they are rounded to, are finite.
  static constexpr Work kLimit = type == FloatType::kHalf ? L::kLargest : L::kLargest / 4;

 public:
  static bool encode(const Element* data, std::int64_t count, std::uint64_t stream,
                     Scale<Work>& scale, std::uint8_t* codes) {
    Work minimum, maximum;
    if (!find_range(data, count, minimum, maximum)) return false;
    // No smaller than that, so that it has an inverse.
    constexpr Work kInStep = 1 << kNoiseBits;
    const Work step =
        std::max((maximum - minimum) / kLevels, std::numeric_limits<Work>::min() * kInStep);
    const Work parts = kInStep / step;
    LaneNoise noise(stream);
    each_group(data, count, [&](const Element* group) {
      const FourBits words = encode_group(group, minimum, parts, noise);
      std::memcpy(codes, &words, sizeof words);
      codes += sizeof words;
    });
    scale = {minimum, maximum > minimum ? step : 0};
    return true;
  }

  static void decode(const std::uint8_t* codes, Scale<Work> scale, std::int64_t count,
                     Element* data) {
    const std::int64_t whole = count / kGroup * kGroup;
    for (std::int64_t i = 0; i < whole; i += kGroup, codes += sizeof(FourBits)) {
      decode_group(codes, scale, data + i);
    }
    if (whole == count) return;
    Element group[kGroup];
    decode_group(codes, scale, group);
    std::copy_n(group, count - whole, data + whole);
  }

 private:
  // The last group is filled up with its first element.
  template <class F>
  static void each_group(const Element* data, std::int64_t count, F&& f) {
    const std::int64_t whole = count / kGroup * kGroup;
    for (std::int64_t i = 0; i < whole; i += kGroup) f(data + i);
    if (whole == count) return;
    Element group[kGroup];
    std::fill_n(std::copy(data + whole, data + count, group), kGroup - (count - whole),
                data[whole]);
    f(group);
  }

  static bool find_range(const Element* data, std::int64_t count, Work& minimum, Work& maximum) {
    // Two of each, by turns: one waits for the result before the last.
    Four least[2], most[2], odd[2]{};
    least[0] = least[1] = Four{} + std::numeric_limits<Work>::max();
    most[0] = most[1] = -least[0];
    each_group(data, count, [&](const Element* group) {
#pragma GCC unroll 8
      for (int k = 0; k < kFours; ++k) {
        Four four;
        L::load(group + 4 * k, four);
        least[k % 2] = four < least[k % 2] ? four : least[k % 2];
        most[k % 2] = four > most[k % 2] ? four : most[k % 2];
        odd[k % 2] += four * 0;  // what is not finite makes this not a number
      }
    });
    minimum = least[0][0];
    maximum = most[0][0];
    Work all = 0;
    for (int i = 0; i < 8; ++i) {
      minimum = std::min(minimum, least[i / 4][i % 4]);
      maximum = std::max(maximum, most[i / 4][i % 4]);
      all += odd[i / 4][i % 4];
    }
    return all == 0 && minimum >= -kLimit && maximum <= kLimit;
  }

  static FourBits encode_group(const Element* group, Work minimum, Work parts, LaneNoise& noise) {
    const Four top = Four{} + kTop;
    FourBits words{}, random{};
#pragma GCC unroll 8
    for (int k = 0; k < kFours; ++k) {
      Four four;
      L::load(group + 4 * k, four);
      const Four above = (four - minimum) * parts;
      const Four cut = above < top ? above : top;
      const auto whole = reinterpret_cast<FourBits>(__builtin_convertvector(cut, FourInts));
      if (k % 2 == 0) random = noise.next();
      const FourBits below_one = k % 2 == 0 ? random & 0xffff : random >> 16;
      words |= ((whole + below_one) >> kNoiseBits) << (bits * k);
    }
    return words;
  }

  static void decode_group(const std::uint8_t* codes, Scale<Work> scale, Element* group) {
    FourBits words;
    std::memcpy(&words, codes, sizeof words);
    const Work m = scale.minimum;
    const Four minimum = {m, m, m, m};
    if (scale.step == 0) {  // a sum with zero would turn -0 into +0
      for (int k = 0; k < kFours; ++k) L::store(minimum, group + 4 * k);
      return;
    }
#pragma GCC unroll 8
    for (int k = 0; k < kFours; ++k) {
      const auto steps = reinterpret_cast<FourInts>((words >> (bits * k)) & kLevels);
      L::store(minimum + __builtin_convertvector(steps, Four) * scale.step, group + 4 * k);
    }
  }
};

// Calls `f` with a coder, and with elements and scales of its type.
template <class F>
auto with_coder(const BlockCode& code, F&& f) {
  return with_float(code.type, [&](auto tag) {
    constexpr FloatType kType = decltype(tag)::kType;
    using L = Lanes<kType>;
    using Element = typename L::Element;
    using Work = typename L::Work;
    if (code.bits == 8) return f(BlockCoder<kType, 8>{}, Element{}, Work{});
    return f(BlockCoder<kType, 4>{}, Element{}, Work{});
  });
}

}  // namespace

bool encode(const BlockCode& code, const void* data, std::int64_t first, std::int64_t last,
            std::uint64_t stream, std::uint8_t* out) {
  std::uint8_t* const codes = out + code.blocks() * code.scale_bytes();
  return with_coder(code, [&](auto coder, auto element, auto work) {
    const auto* const all = static_cast<const decltype(element)*>(data);
    for (std::int64_t i = first; i < last; ++i) {
      Scale<decltype(work)> scale;
      const std::int64_t begin = i * code.block;
      if (!coder.encode(all + begin, std::min(code.block, code.elements - begin),
                        substream(stream, static_cast<std::uint64_t>(i)), scale,
                        codes + begin * code.bits / 8)) {
        return false;
      }
      std::memcpy(out + i * code.scale_bytes(), &scale, sizeof scale);
    }
    return true;
  });
}

void decode(const BlockCode& code, const std::uint8_t* in, std::int64_t first, std::int64_t last,
            void* data) {
  const std::uint8_t* const codes = in + code.blocks() * code.scale_bytes();
  with_coder(code, [&](auto coder, auto element, auto work) {
    auto* const all = static_cast<decltype(element)*>(data);
    for (std::int64_t i = first; i < last; ++i) {
      Scale<decltype(work)> scale;
      std::memcpy(&scale, in + i * code.scale_bytes(), sizeof scale);
      const std::int64_t begin = i * code.block;
      coder.decode(codes + begin * code.bits / 8, scale,
                   std::min(code.block, code.elements - begin), all + begin);
    }
  });
}

}  // namespace reprise
