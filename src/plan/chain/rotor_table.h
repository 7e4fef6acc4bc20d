// The dynamic program behind planners::rotor(): for stages s to t and m slots of memory, the least
// time beyond running each stage once, forward and backward. H where the input of s is held by
// somebody else and not counted in m; F where it is counted, and goes if no backward needs it.
//
// With o_i the slots of stage i's output, k_i those of all it saves, and T(s, u) the seconds
// forward of stages s to u - 1 together:
//
//   H(s, t, m) = min( N(s + 1, t, m - k_s)                                s kept
//                     2 k_s / rate + F(s + 1, t, m)                       kept in a store, if t is
//                     the last S(s, t, m) )
//   S(s, t, m) = min over u in s + 1 … t of T(s, u) + F(u, t, m) + H(s, u - 1, m)
//                                                                         s … u - 1 again later
//   F(s, t, m) = H(s, t, m - o_{s-1})              where the backward of s needs its input, else
//              = min( N(s + 1, t, m - k_s), 2 k_s / rate + F(s + 1, t, m), S(s, t, m - o_{s-1}) )
//
// where N is H if s saves its output, and F if not; each only where m suffices for what it needs at
// once (the need_* functions). H and F after t are 0. That is theorem 1 of arXiv:1911.13214 for
// chains some of whose outputs no backward needs; m counts everything but what encloses (s, t), so
// also what the stages after t have left: gradients of parameters, and the chain's output.
//
// Rows of m are contiguous: the minimum over u is a sum of two rows, which the compiler turns into
// vector instructions. Blocks of s and t share rows while they are in the cache.
#pragma once

#include <reprise/chain.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/chain/large_pages.h"
#include "plan/chain/schedule_builder.h"

namespace reprise::plan {

class RotorTable {
 public:
  // `slots` of `slot` bytes. What is kept of consecutive stages is rounded together, so that errors
  // do not add up; they can still make a schedule need more than its slots.
  RotorTable(const Chain& chain, std::int64_t slots, Bytes slot, const TransferRate& store);

  std::int64_t slots() const { return slots_; }
  // For the whole chain; infinite if that many slots do not suffice.
  float overhead(std::int64_t slots) const { return held_.row(index(0, stages_ - 1))[slots]; }
  Schedule schedule(std::int64_t slots) const;

 private:
  using Stage = std::int64_t;

  // A row of seconds for each (s, t), by slots.
  struct Table {
    struct Bounds {
      std::int64_t least = 0;  // slots below which there is no schedule
      std::int64_t all = 0;    // from which on everything is kept
    };
    Table(std::size_t rows, std::size_t width);
    float* row(std::size_t at) { return seconds.data() + at * width; }
    const float* row(std::size_t at) const { return seconds.data() + at * width; }

    std::size_t width;
    std::vector<float, LargePages<float>> seconds;
    std::vector<Bounds> bounds;
  };

  // What m must at least be to run s kept with its input held elsewhere, for the backward of s, and
  // to run s … u - 1 not kept.
  std::int64_t need_keep(Stage s, Stage t) const;
  std::int64_t need_backward(Stage s) const;
  std::int64_t need_advance(Stage s, Stage u, Stage t) const;
  std::int64_t in_slots(Bytes bytes) const;
  // Gradients that are there while stages up to t run forward.
  Bytes gradients(Stage t) const;
  const ChainStage& stage(Stage s) const { return chain_.stages[static_cast<std::size_t>(s)]; }
  std::int64_t input_slots(Stage s) const;
  float forward(Stage s, Stage u) const;
  // What ends before the chain does is run again, and regions do not offload what they recompute.
  bool may_offload(Stage s, Stage t) const {
    return t + 1 == stages_ &&
           offload_[static_cast<std::size_t>(s)] < std::numeric_limits<float>::infinity();
  }
  static std::size_t index(Stage s, Stage t);
  // H or F: how the stages after s find its output, when s is kept.
  Table& after(Stage s) { return stage(s).saves_output ? held_ : free_; }
  const Table& after(Stage s) const { return stage(s).saves_output ? held_ : free_; }

  void measure();
  void measure(Stage s, Stage t);
  void fill();
  void fill_block(StageRange first, StageRange last);
  void split(Stage s, Stage u, Stage t);
  void finish(Stage s, Stage t);
  void add_kept(Table& table, std::int64_t need, Stage s, Stage t);
  void close_row(Table& table, std::size_t at) const;

  enum class How { kKeep, kOffload, kSplit };
  struct Choice {
    How how;
    Stage split = 0;
    std::int64_t slots = 0;  // for what comes after
  };
  Choice choice(Stage s, Stage t, std::int64_t m, bool is_free) const;
  void build(ScheduleBuilder& builder, Stage s, Stage t, std::int64_t m, bool is_free) const;

  void (*const relax_)(float*, const float*, const float*, float, std::int64_t);
  const Chain& chain_;
  const Stage stages_;
  const std::int64_t slots_;
  const Bytes slot_;
  std::vector<std::int64_t> output_, kept_;  // slots
  std::vector<double> forward_until_;        // seconds of the stages before
  std::vector<float> offload_;               // seconds there and back; infinite without a store
  // What later stages leave: gradients of their parameters, and the chain's output.
  std::vector<Bytes> later_;
  std::vector<Bytes> advance_;  // by index(s, u - 1): at once, without gradients
  Table held_, free_;
};

}  // namespace reprise::plan
