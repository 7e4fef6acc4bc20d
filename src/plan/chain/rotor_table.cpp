// Fills the table and reads schedules out of it; see rotor_table.h for what it holds.
#include "plan/chain/rotor_table.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace reprise::plan {
namespace {

using Kind = ScheduleOp::Kind;

constexpr float kImpossible = std::numeric_limits<float>::infinity();
// Stages whose rows are worked on together.
constexpr std::int64_t kBlock = 4;
// Slots between two looks at where a row can be improved.
constexpr std::int64_t kStride = 32;
// Rows are padded to whole vectors.
constexpr std::size_t kLane = 8;

// out = min(out, after + before + seconds), each.
template <std::size_t lanes>
[[gnu::always_inline]] inline void relax_by(float* out, const float* after, const float* before,
                                            float seconds, std::int64_t count) {
  using Lanes [[gnu::vector_size(lanes * sizeof(float))]] = float;
  constexpr auto kStep = static_cast<std::int64_t>(lanes);
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    Lanes now, left, right;
    std::memcpy(&now, out + i, sizeof now);
    std::memcpy(&left, after + i, sizeof left);
    std::memcpy(&right, before + i, sizeof right);
    const Lanes sum = left + right + seconds;
    const Lanes less = sum < now ? sum : now;
    std::memcpy(out + i, &less, sizeof less);
  }
  for (; i < count; ++i) out[i] = std::min(out[i], after[i] + before[i] + seconds);
}

using Relax = void (*)(float*, const float*, const float*, float, std::int64_t);

void relax_plainly(float* out, const float* after, const float* before, float seconds,
                   std::int64_t count) {
  relax_by<4>(out, after, before, seconds, count);
}

#ifdef __x86_64__
[[gnu::target("avx2")]] void relax_by_avx2(float* out, const float* after, const float* before,
                                           float seconds, std::int64_t count) {
  relax_by<8>(out, after, before, seconds, count);
}
#endif

// What this machine has, not what the library was compiled for.
Relax fastest_relax() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return relax_by_avx2;
#endif
  return relax_plainly;
}

}  // namespace

RotorTable::Table::Table(std::size_t rows, std::size_t row_width)
    : width(row_width), seconds(rows * row_width, kImpossible), bounds(rows) {}

RotorTable::RotorTable(const Chain& chain, std::int64_t slots, Bytes slot,
                       const TransferRate& store)
    : relax_(fastest_relax()),
      chain_(chain),
      stages_(std::ssize(chain.stages)),
      slots_(slots),
      slot_(slot),
      later_(chain.stages.size()),
      advance_(index(0, stages_)),
      held_(index(0, stages_), (static_cast<std::size_t>(slots) / kLane + 1) * kLane),
      free_(held_) {
  Bytes kept;
  double seconds = 0;
  for (const ChainStage& each : chain.stages) {
    output_.push_back(in_slots(each.output));
    kept_.push_back(in_slots(kept + each.saved) - in_slots(kept));
    kept += each.saved;
    forward_until_.push_back(seconds);
    seconds += each.forward.count();
    const auto moved = static_cast<double>(each.saved.count);
    // Slower than anybody waits for is as good as never, and fits in single precision.
    constexpr double kSlowest = 1e12;
    const double seconds_moved = moved > 0 ? 2 * moved / store.bytes_per_second : kSlowest;
    const bool can_move = store.bytes_per_second > 0 && seconds_moved < kSlowest;
    offload_.push_back(can_move ? static_cast<float>(seconds_moved) : kImpossible);
  }
  forward_until_.push_back(seconds);
  measure();
  fill();
}

std::size_t RotorTable::index(Stage s, Stage t) {
  return static_cast<std::size_t>(t * (t + 1) / 2 + s);
}

std::int64_t RotorTable::in_slots(Bytes bytes) const {
  return (bytes.count + slot_.count / 2) / slot_.count;
}

std::int64_t RotorTable::input_slots(Stage s) const {
  return s > 0 ? output_[static_cast<std::size_t>(s) - 1] : 0;
}

Bytes RotorTable::gradients(Stage t) const {
  // Before all backward there is none.
  if (t + 1 == stages_) return {};
  return stage(t).output_gradient + later_[static_cast<std::size_t>(t)];
}

std::int64_t RotorTable::need_keep(Stage s, Stage t) const {
  const ChainStage& of = stage(s);
  const Bytes output = of.saves_output ? Bytes(0) : of.output;
  return in_slots(gradients(t) + of.saved + output + of.keep_temporaries);
}

std::int64_t RotorTable::need_backward(Stage s) const {
  const ChainStage& of = stage(s);
  const Bytes later = later_[static_cast<std::size_t>(s)];
  // The caller holds the chain's output throughout; later_ counts it for the stages before.
  const Bytes output = s + 1 == stages_ ? of.output : Bytes(0);
  const Bytes before =
      of.saved + of.output_gradient + later + (of.saves_output ? Bytes(0) : output);
  const Bytes made =
      (s > 0 ? stage(s - 1).output_gradient : chain_.input_gradient) + of.parameter_gradients;
  return in_slots(
      std::max({before, before + made + of.backward_temporaries, made + later + output}));
}

std::int64_t RotorTable::need_advance(Stage s, Stage u, Stage t) const {
  return in_slots(gradients(t) + advance_[index(s, u - 1)]);
}

float RotorTable::forward(Stage s, Stage u) const {
  return static_cast<float>(forward_until_[static_cast<std::size_t>(u)] -
                            forward_until_[static_cast<std::size_t>(s)]);
}

// All that does not need the tables.
void RotorTable::measure() {
  for (Stage t = stages_; t-- > 1;) {
    const auto at = static_cast<std::size_t>(t);
    later_[at - 1] = later_[at] + stage(t).parameter_gradients;
    if (t + 1 == stages_) later_[at - 1] += stage(t).output;
  }
  for (Stage t = 0; t < stages_; ++t) {
    for (Stage s = t; s >= 0; --s) measure(s, t);
  }
}

void RotorTable::measure(Stage s, Stage t) {
  Bytes& advance = advance_[index(s, t)];
  advance = stage(t).output + stage(t).forward_temporaries;
  if (t > s) {
    advance += stage(t - 1).output;
    advance = std::max(advance, advance_[index(s, t - 1)]);
  }
  const std::int64_t kept = kept_[static_cast<std::size_t>(s)];
  const std::int64_t rest = s < t ? kept + after(s).bounds[index(s + 1, t)].all : 0;
  const std::int64_t held = std::max({need_keep(s, t), need_backward(s), rest});
  const std::int64_t input = input_slots(s);
  const std::int64_t free = stage(s).needs_input
                                ? input + held
                                : std::max({input + need_keep(s, t), need_backward(s), rest});
  held_.bounds[index(s, t)].all = std::min(held, slots_ + 1);
  free_.bounds[index(s, t)].all = std::min(free, slots_ + 1);
}

void RotorTable::fill() {
  for (Stage t = 0; t < stages_; t += kBlock) {
    const StageRange last{t, std::min(t + kBlock, stages_)};
    for (Stage s = t; s >= 0; s -= kBlock) {
      fill_block({s, std::min(s + kBlock, stages_)}, last);
    }
  }
}

// Rows (s, t) for s in `first` and t in `last`.
void RotorTable::fill_block(StageRange first, StageRange last) {
  const bool is_diagonal = first.begin == last.begin;
  // What is split between the blocks reads rows that are complete.
  if (!is_diagonal) {
    for (Stage u = first.end; u <= last.begin; ++u) {
      for (Stage s = first.begin; s < first.end; ++s) {
        for (Stage t = last.begin; t < last.end; ++t) split(s, u, t);
      }
    }
  }
  for (Stage s = first.end; s-- > first.begin;) {
    for (Stage t = std::max(s, last.begin); t < last.end; ++t) {
      for (Stage u = s + 1; u <= t; ++u) {
        if (is_diagonal || u < first.end || u > last.begin) split(s, u, t);
      }
      finish(s, t);
    }
  }
}

// Into the row of H, where S is gathered.
void RotorTable::split(Stage s, Stage u, Stage t) {
  const std::size_t at = index(s, t), later = index(u, t), again = index(s, u - 1);
  const std::int64_t begin =
      std::max({free_.bounds[later].least, held_.bounds[again].least, need_advance(s, u, t)});
  std::int64_t end = held_.bounds[at].all;
  if (begin >= end) return;
  // Rows fall with m, and no split takes less than running again what it splits off.
  const float* const found = held_.row(at);
  const float least = forward(s, u);
  while (end - kStride > begin && found[end - kStride] <= least) end -= kStride;
  if (found[begin] <= least) return;
  relax_(held_.row(at) + begin, free_.row(later) + begin, held_.row(again) + begin, forward(s, u),
         end - begin);
}

void RotorTable::finish(Stage s, Stage t) {
  const std::size_t at = index(s, t);
  const std::int64_t input = input_slots(s), need = need_keep(s, t);
  const bool needs_input = stage(s).needs_input;
  float *const held = held_.row(at), *const free = free_.row(at);
  const auto shift = [&] {
    if (input <= slots_) std::copy(held, held + slots_ + 1 - input, free + input);
  };
  if (!needs_input) {
    shift();
    add_kept(free_, input + need, s, t);
  }
  add_kept(held_, need, s, t);
  close_row(held_, at);
  if (needs_input) shift();
  close_row(free_, at);
}

// What begins with s kept.
void RotorTable::add_kept(Table& table, std::int64_t need, Stage s, Stage t) {
  if (s == t) return;
  const auto of = static_cast<std::size_t>(s);
  float* const out = table.row(index(s, t));
  const std::int64_t end = table.bounds[index(s, t)].all;
  const std::int64_t least = std::max(need, need_backward(s));
  const auto add = [&](const Table& rest, std::int64_t slots, float seconds) {
    const float* const row = rest.row(index(s + 1, t));
    const std::int64_t begin = std::max(least, rest.bounds[index(s + 1, t)].least + slots);
    for (std::int64_t m = begin; m < end; ++m) out[m] = std::min(out[m], row[m - slots] + seconds);
  };
  add(after(s), kept_[of], 0);
  if (may_offload(s, t)) add(free_, 0, offload_[of]);
}

void RotorTable::close_row(Table& table, std::size_t at) const {
  float* const row = table.row(at);
  Table::Bounds& bounds = table.bounds[at];
  std::fill(row + bounds.all, row + slots_ + 1, 0.F);
  bounds.least = std::find_if(row, row + slots_ + 1, [](float r) { return r < kImpossible; }) - row;
}

RotorTable::Choice RotorTable::choice(Stage s, Stage t, std::int64_t m, bool is_free) const {
  const auto of = static_cast<std::size_t>(s);
  const std::int64_t input = is_free ? input_slots(s) : 0;
  // What remains with the input, and without it where it may go.
  const std::int64_t beside = m - input;
  const std::int64_t kept = stage(s).needs_input ? beside : m;
  const Table& table = is_free ? free_ : held_;
  Choice best{How::kKeep, 0, kept - kept_[of]};
  if (s == t || m >= table.bounds[index(s, t)].all) return best;
  float least = kImpossible;
  const auto consider = [&](float overhead, const Choice& choice) {
    if (overhead >= least) return;
    least = overhead;
    best = choice;
  };
  if (beside >= need_keep(s, t) && kept >= need_backward(s)) {
    const std::size_t rest = index(s + 1, t);
    if (kept >= kept_[of]) {
      consider(after(s).row(rest)[kept - kept_[of]], {How::kKeep, 0, kept - kept_[of]});
    }
    if (may_offload(s, t)) {
      consider(free_.row(rest)[kept] + offload_[of], {How::kOffload, 0, kept});
    }
  }
  for (Stage u = s + 1; u <= t; ++u) {
    if (beside < need_advance(s, u, t)) continue;
    consider(free_.row(index(u, t))[beside] + held_.row(index(s, u - 1))[beside] + forward(s, u),
             {How::kSplit, u, beside});
  }
  return best;
}

void RotorTable::build(ScheduleBuilder& builder, Stage s, Stage t, std::int64_t m,
                       bool is_free) const {
  const Choice chosen = choice(s, t, m, is_free);
  if (chosen.how == How::kSplit) {
    builder.advance({s, chosen.split});
    build(builder, chosen.split, t, chosen.slots, true);
    return build(builder, s, chosen.split - 1, chosen.slots, false);
  }
  const bool moves = chosen.how == How::kOffload;
  builder.add(Kind::kForwardKeep, s);
  if (moves) builder.add(Kind::kOffload, s);
  if (s < t) build(builder, s + 1, t, chosen.slots, moves || !stage(s).saves_output);
  if (moves) builder.add(Kind::kLoad, s);
  builder.add(Kind::kBackward, s);
}

Schedule RotorTable::schedule(std::int64_t slots) const {
  ScheduleBuilder builder;
  build(builder, 0, stages_ - 1, slots, false);
  return builder.take(chain_);
}

}  // namespace reprise::plan
