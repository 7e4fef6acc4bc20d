// One step's record: which value came from which operator call, what is dropped, and how it comes
// back. Under libtorch::limit_mutex() throughout.
#pragma once

#include <reprise/budget.h>
#include <reprise/memory.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/peak_tracker.h"
#include "core/ticks.h"
#include "plan/simulate/heuristic.h"
#include "tape/accelerator.h"
#include "tape/following.h"
#include "tape/parking.h"
#include "tape/refusal.h"
#include "tape/replay_costs.h"
#include "tape/step_log.h"
#include "tape/value.h"
#include "tape/weighing.h"

namespace reprise::tape {

class FunctionRun;

class Tape {
 public:
  // Of its budget.
  struct Parts {
    ReplayCosts& costs;
    Parking* parking;          // null: values are dropped alone
    Accelerator* accelerator;  // where the budget is one's
    Learning* learning;        // where the step's calls are compared with those of earlier ones
    bool logs;                 // the step is written down for simulations
  };
  // `weighing`: null where all values weigh 1.
  Tape(const BudgetOptions& options, const plan::EvictionHeuristic& heuristic, const Parts& parts,
       std::shared_ptr<Weighing> weighing);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Weighing* weighing() const { return weighing_.get(); }
  // Null on the CPU.
  DeviceSide* device_side() const { return side_.get(); }
  // Plain, and on the budget's device. Asked under the limit's lock where another thread may drop
  // what the tensor holds.
  bool manages(const at::Tensor& tensor) const {
    if (!libtorch::is_plain(tensor, device_.type())) return false;
    return side_ == nullptr || tensor.device() == device_;
  }
  c10::Device device() const { return device_; }

  // The value that a plain tensor holds now; of a storage that is new here, a root.
  Value& value_of(const at::Tensor& tensor);
  // For a number on the host that an operator on an accelerator reads: a copy, as a root that no
  // storage holds.
  Value& host_number(const at::Tensor& tensor);
  // Null if the storage is not managed.
  static Cell* cell_of(const at::Tensor& tensor) { return cell_of(tensor.storage()); }
  static Cell* cell_of(const c10::Storage& storage);

  // Recording.
  void read(Producer& producer, Value& value);
  // A new storage holds what `producer` made; a root where that is null.
  void add_result(Producer* producer, const at::Tensor& tensor, std::int16_t result,
                  std::int16_t element);
  // For a result of a custom function, which `run` was: false if it is none that `producer` alone
  // has made, or too small to be dropped.
  bool add_function_result(Producer& producer, const at::Tensor& tensor, std::int16_t result,
                           const FunctionRun& run);
  // Of a new result that nobody else has and that covers little of its memory: moves what it covers
  // to memory of its own, and frees the rest. True if it did: what is there now is too small to be
  // dropped. `tensor` must be managed(), and no storage of the tape's.
  bool shrink(const at::Tensor& tensor) const;
  // Its operator has changed the storage of `cell`: from now on it holds another value.
  Value& new_version(Cell& cell);
  void set_producer(Value& value, Producer& producer, std::int16_t slot);
  // Takes a producer into the tape, or drops it if it made nothing that can be made again.
  // `now`: as now() gives it. Seconds that the call takes when it is run again.
  // `logged`: its call in the log of the step.
  double add(std::unique_ptr<Producer> producer, double now,
             std::optional<StepLog::Index> logged = std::nullopt);
  void discard(Producer* producer);
  // The value will not be dropped any more.
  void make_root(Value& value);
  static bool holds_whole_numbers(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
  }
  // Whether composites (at::lstm, tensor_split, ctc_loss) may read the tensor through a raw pointer
  // that they hold while they call other operators: lengths, batch sizes, offsets. LibTorch keeps
  // these as whole numbers along one dimension, in memory of the host.
  bool may_be_read_by_pointer(const at::Tensor& tensor) const;
  // What such a tensor's storage holds is there from now on, and is not dropped while it lives.
  static void keep_for_pointers(const c10::Storage& storage);
  // The bytes of a root are about to change: whoever needs them is made independent of them. It
  // may keep a copy of them until new_version(), or unprotect().
  void protect_readers(Value& root);
  // Keeps a copy of a root's bytes until new_version(), or unprotect(). False if there is no room.
  bool keep_contents(Value& root);
  // For a value that was to be written: true if it is a root of which nobody needs old bytes, as
  // they did not change. With `may_differ` that is looked up.
  bool unprotect(Value& value, bool may_differ);

  // Plans (following.cpp), where follows(). Told are calls that read or make what could be dropped,
  // which shapes decide, and not what was found out about operators: one that reads such begins
  // when that is pinned, any other when it has made some. It is over when its results are known.
  bool reads_told(std::span<Value* const> read) const;
  std::size_t begin_call(std::uint64_t key, std::span<Value* const> read);
  void end_call(std::size_t call, const CallNote& note);
  const Following& following() const { return following_; }
  bool follows() const { return following_.is_on(); }
  bool takes_notes() const { return following_.record.has_value() || log.has_value(); }
  bool may_drop(const Value& value) const;
  std::int64_t bytes_given_up() const;
  // Before close().
  void note_end();
  Learning::End take_end();

  // Has its bytes when this returns. They stay while the value is pinned.
  void restore(Value& value);
  // Whether restore() has another order to try where there is no room.
  bool tries_again() const { return trying_ == std::this_thread::get_id(); }
  void pin(Value& value);
  void unpin(Value& value);
  void touch(Value& value, double now) { index_.touch(value, now); }
  // Seconds of a clock of the tape's own.
  static double now() { return static_cast<double>(ticks()) / (kTicksPerMicrosecond * 1e6); }

  // Whether values that are too small to be dropped have producers all the same. Without, they stay
  // where replays need them, and that is bounded.
  bool records_little() const { return little_kept_ > kMostLittleKept; }

  // Drops or parks the value that should go first; false if none may go.
  bool drop_one();
  // When nothing else can go: what was packed has to be made again. False if nothing was.
  bool drop_bits();
  // When nothing else can go, roots that died and that replays read: frees one from which nothing
  // that is held has to be made again. False if there is none.
  bool free_dead_root();
  // Drops everything that may go.
  void drop_all();

  // Brings back what storages hold, as long as that throws nothing; then there is nothing managed
  // any more.
  void close(bool may_throw);
  // For good.
  bool is_closed() const { return is_closed_; }

  // For Cell.
  void storage_died(Cell& cell, c10::DataPtr memory) noexcept;

  FinishNeeds finish_needs();
  // What cannot be dropped now, when all is dropped that can be: for the text of a BudgetError.
  LiveParts undroppable();

  // Null where values are dropped alone.
  Parking* parking() const { return parking_; }

  std::int64_t packed_bytes() const { return packed_bytes_; }

  // Where the step is written down.
  std::optional<StepLog> log;
  // Of calls under way, where notes are taken.
  std::vector<CallMeter*> meters;
  StepReport report;  // own_time by now(), and with what settled() takes off
  // Both clocks run from the beginning of the step.
  const Stopwatch watch;
  const double began = now();
  // Of the step; read under the lock.
  const PeakScope* peak = nullptr;
  const PeakTracker::Period* other_threads = nullptr;
  const PeakTracker::Period* past_operators = nullptr;
  // What reading dropped bytes past the tape throws: while the step is under way, and when it has
  // ended without them.
  std::string gone_text() const;
  static constexpr const char* kLostText =
      "the bytes of this tensor were dropped by a reprise::MemoryBudget step that has ended since, "
      "and are lost. finish() would have restored them, or said how many bytes that takes. "
      "Compute the tensor again, in a step that ends with finish()";

 private:
  using Values = c10::SmallVector<Value*, 8>;

  static bool is_of_use(const Value& value);
  void keep_for_pointers(Cell& cell);
  static bool is_droppable(const Cell& cell) { return cell.own && !cell.is_read_by_pointer; }
  // Those that nobody holds and that have bytes, as far as what is held is made of them.
  template <class F>
  void visit_detached(const F& visit);
  void leave_list(Cell& cell);
  void abandon(Cell& cell);
  // Nothing can bring its bytes back.
  static bool is_gone(const Cell& cell) {
    return cell.gone && cell.value->producer == nullptr && !cell.value->has_bytes();
  }
  std::vector<Value*> held_dependants(Value& root);
  bool find_all_there(std::span<Value* const> roots, std::int64_t most, std::size_t most_met,
                      std::vector<Value*>& held);
  bool do_without(std::span<Value* const> roots, std::int64_t most, std::size_t most_met);
  void keep_or_free_dead_root(Value& root) noexcept;
  void spare(Value& value);
  bool may_drop_once_detached(const Value& value, const Cell& cell,
                              const c10::DataPtr& memory) const;
  void update_entry(Value& value);
  void enter_index(Value& value, double last_use);
  void leave_index(Value& value);
  void number(Value& value);
  void number_results(const Producer& producer);
  void note_fixed(const Value& value);
  void act(const plan::StepScript::Action& action);
  void carry_out(std::span<const plan::StepScript::Action> actions);
  bool is_told(const Value& value) const;
  void note_device_times();
  void set_absence(Value& value, Absence absence);
  std::vector<Value*>* list_of(const Value& value);
  void enter_lists(Value& value);
  void leave_lists(Value& value);
  bool counts_droppable() const { return following_.is_on() || log.has_value(); }
  Value* spare_value() const;
  void follow(Learning::Script script);
  void destroy(Value* value);
  void fill_index();
  void drop(Value& value);
  void look_up_costs(Producer& producer) const;
  StepLog::Costs log_costs() const;
  // Seconds that making it again would take, from what is there.
  double seconds_to_make(const Value& value);
  bool unpark(Value& value);
  void restore(Value& target, bool is_careful);
  std::int64_t bytes_to_make(const Producer& producer);
  static Value* first_missing(const Producer& producer);
  bool is_made_of(const Value& value, const Value& other);
  Value* next_to_pin(const Producer& producer, std::span<Value* const> pinned);
  // Packing (packing.cpp): values whose elements are of two kinds, as dropout masks are.
  bool can_be_packed(const Value& value) const;
  void look_for_kinds(Producer& producer);
  bool pack(Value& value, c10::DataPtr& memory);
  bool pack_now(Value& value, c10::DataPtr& memory);
  bool unpack(Value& value);
  void keep_bits(Value& value, std::unique_ptr<Packed> bits);
  std::unique_ptr<Packed> take_bits(Value& value);
  std::uint64_t hash_of(const void* data, std::int64_t size) const;
  bool is_own_memory(const c10::DataPtr& memory) const;
  // Nobody but the caller has it: an operator that keeps its result may read it unseen.
  bool is_fresh(const at::Tensor& tensor) const {
    return is_own_memory(tensor.storage().data_ptr()) && tensor.storage().use_count() == 1 &&
           tensor.use_count() == 1;
  }
  // Kernels may enlarge an `out=` that they are given empty.
  c10::Storage new_storage(std::int64_t bytes) const;
  c10::Storage copy_of(const void* data, std::int64_t bytes) const;
  void give_bytes(Value& value, c10::Storage storage);
  void note_dropped(Value& value);
  void note_restored(Value& value);
  // Seconds of the dropped values around it, as the heuristic counts them.
  double neighbourhood(const plan::EvictionEntry& entry);
  double classes_around(const Value& value);
  double walk_upstream(const Value& value);
  double walk_downstream(const Value& value);
  void replay(Producer& producer);
  bool replay_or_give_up(Producer& producer, std::int64_t& bytes);
  c10::Storage storage_for_replay(const Producer& producer, std::size_t slot);
  bool is_wanted(const Value& value) const {
    return value.cell != nullptr || !value.readers.empty() || value.pins != 0;
  }
  void leave_inputs(Producer& producer, Values& unwanted);
  static bool still_makes(Producer& producer, const Value& without);
  void forget_if_unwanted(Value* value);
  void forget(Values& unwanted);

  const BudgetOptions options_;
  const std::unique_ptr<DeviceSide> side_;
  const c10::Device device_;
  const plan::Neighbourhood neighbourhood_;
  ReplayCosts& costs_;
  Parking* const parking_;
  const std::shared_ptr<Weighing> weighing_;
  plan::CostClasses classes_;
  plan::EvictionIndex index_;
  plan::RoomToMake room_to_make_;
  Following following_;
  bool is_closed_ = false;
  // Nothing is in the index before anything has to go.
  bool is_index_filled_ = false;
  static constexpr std::int64_t kMostLittleKept = 256 << 10;
  std::int64_t little_kept_ = 0;
  Cell* cells_ = nullptr;
  // Those that have bits.
  std::vector<Value*> packed_;
  std::int64_t packed_bytes_ = 0;
  std::int64_t values_ = 0;
  // Roots that nobody holds any more and that replays read, as far as they are large enough to be
  // dropped, in the order of their deaths.
  std::vector<Value*> dead_roots_;
  // That restore() is bringing back, one for another.
  std::vector<const Value*> restoring_;
  std::thread::id trying_;  // that has another order to try
  std::vector<plan::CostClasses::Node> seen_;
  std::uint32_t walks_ = 0;
  std::vector<Producer*> met_;
  // Whose step it is, as the system names it.
  const int thread_ = static_cast<int>(gettid());
};

template <class F>
void Tape::visit_detached(const F& visit) {
  ++walks_;
  met_.clear();
  const auto meet = [this](Producer* producer) {
    if (producer != nullptr && std::exchange(producer->met, walks_) != walks_) {
      met_.push_back(producer);
    }
  };
  std::unordered_set<const Value*> seen;
  const auto look_at = [&](const Value& value) {
    if (value.detached && seen.insert(&value).second) visit(value);
  };
  for (const Cell* cell = cells_; cell != nullptr; cell = cell->next) {
    meet(cell->value->producer);
    look_at(*cell->value);
  }
  for (std::size_t i = 0; i < met_.size(); ++i) {
    for (const Producer::Input& input : met_[i]->inputs) {
      if (input.value == nullptr) continue;
      look_at(*input.value);
      meet(input.value->producer);
    }
  }
}

}  // namespace reprise::tape
