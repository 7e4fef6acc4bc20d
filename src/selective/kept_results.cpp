#include "selective/kept_results.h"

#include <reprise/error.h>
#include <reprise/store.h>

#include <algorithm>
#include <utility>

#include "libtorch/autograd/saved_tensor.h"

namespace reprise::selecting {
namespace {

constexpr std::uint64_t kMixer = 0x9E3779B97F4A7C15ULL;

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  return (state ^ value) * kMixer + (state >> 29U);
}

std::uint64_t mix(std::uint64_t state, const at::Tensor& tensor) {
  if (!tensor.defined()) return mix(state, 1);
  state = mix(state, static_cast<std::uint64_t>(tensor.scalar_type()));
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return state;
  for (const std::int64_t size : tensor.sizes()) {
    state = mix(state, static_cast<std::uint64_t>(size));
  }
  return mix(state, 2);
}

}  // namespace

std::string name_of(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

std::uint64_t shapes_of(at::ArrayRef<c10::IValue> arguments) {
  std::uint64_t state = arguments.size();
  visit_tensors(arguments, [&](const at::Tensor& tensor) { state = mix(state, tensor); });
  return state;
}

at::Tensor alias_of(const at::Tensor& tensor) {
  return tensor.defined() ? libtorch::alias_without_history(tensor) : tensor;
}

void ChangeWatch::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) counters_.push_back({counter, counter.current_version()});
  if (tensor.has_storage() && !includes(tensor)) {
    memory_.emplace_back(tensor.storage().getWeakStorageImpl());
  }
}

bool ChangeWatch::includes(const at::Tensor& tensor) const {
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  return std::any_of(memory_.begin(), memory_.end(),
                     [&](const auto& memory) { return memory._unsafe_get_target() == storage; });
}

void ChangeWatch::expect_change(const at::Tensor& tensor) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  for (Counter& watched : counters_) {
    // Counters are told apart by address alone; a tensor's may be here twice.
    if (libtorch::same_counter(watched.counter, counter)) ++watched.version;
  }
}

bool ChangeWatch::saw_change() const {
  return noted_ || std::any_of(counters_.begin(), counters_.end(), [](const Counter& watched) {
           return watched.counter.current_version() != watched.version;
         });
}

c10::SmallVector<c10::IValue, 1> KeptCall::copy_of_results() const {
  c10::SmallVector<c10::IValue, 1> copies;
  for (const c10::IValue& result : results) {
    copies.push_back(mapped(result, [&](const at::Tensor& tensor) {
      return is_private && tensor.defined() ? tensor.clone() : alias_of(tensor);
    }));
  }
  return copies;
}

bool KeptCall::holds_memory() const {
  bool holds = draw != nullptr || !parked.empty();
  visit_tensors(results, [&](const at::Tensor&) { holds = true; });
  return holds;
}

void KeptCall::drop_empty_parked() {
  if (std::ranges::none_of(parked, [](const auto& each) { return each != nullptr; })) {
    parked.clear();
  }
}

void KeptCall::release_parked() {
  std::size_t next = 0;
  for (c10::IValue& result : results) {
    if (parked.empty()) return;
    result = mapped(result, [&](const at::Tensor& tensor) {
      return parked[next++] != nullptr ? at::Tensor() : tensor;
    });
  }
}

KeptResults::KeptResults(std::shared_ptr<const detail::PolicyRule> rule) : rule_(std::move(rule)) {}

KeptResults::~KeptResults() = default;

KeptResults::CallsOfOperator& KeptResults::calls_of(const c10::FunctionSchema& schema) {
  for (CallsOfOperator& calls : operators_) {
    if (calls.schema == &schema) return calls;
  }
  operators_.push_back({&schema, 0, rule_->by_operator(schema)});
  return operators_.back();
}

KeptResults::Begun KeptResults::begin_call(const c10::FunctionSchema& schema,
                                           std::uint64_t shapes) {
  CallsOfOperator& calls = calls_of(schema);
  log_.push_back({&schema, shapes, nullptr, nullptr});
  return {log_.size() - 1, calls.calls++, calls.verdict};
}

bool KeptResults::fits(const Limited& call, const detail::ByteLimit& limit) {
  if (call.bytes > limit.bytes) return false;
  auto group = std::find_if(limited_.begin(), limited_.end(),
                            [&](const LimitedGroup& other) { return other.limit == &limit; });
  if (group == limited_.end()) group = limited_.insert(group, LimitedGroup{&limit, {}, {}});
  const auto worth_more = [](const Limited& a, const Limited& b) { return a.worth > b.worth; };
  group->members.push_back(call);
  group->used += call.bytes;
  std::push_heap(group->members.begin(), group->members.end(), worth_more);
  bool kept = true;
  while (group->used > limit.bytes) {
    std::pop_heap(group->members.begin(), group->members.end(), worth_more);
    const Limited cheapest = group->members.back();
    group->members.pop_back();
    group->used -= cheapest.bytes;
    if (cheapest.position == call.position) {
      kept = false;
    } else {
      remove(cheapest.position);
    }
  }
  return kept;
}

void KeptResults::forget(std::size_t position) {
  KeptCall* const kept = std::exchange(log_[position].kept, nullptr);
  if (kept == open_) open_ = nullptr;
  if (!kept->is_followed) return;
  for (Call& call : log_) {
    if (call.followed == kept) call.followed = nullptr;
  }
}

void KeptResults::remove(std::size_t position) {
  forget(position);
  std::erase_if(kept_, [&](const auto& kept) { return kept->position == position; });
}

void KeptResults::keep(std::unique_ptr<KeptCall> call, const detail::ByteLimit* limit, Bytes bytes,
                       double worth) {
  if (limit != nullptr && !fits({worth, call->position, bytes}, *limit)) return;
  close();
  log_[call->position].kept = call.get();
  open_ = call.get();
  kept_.push_back(std::move(call));
}

bool KeptResults::note_sharer(const at::Tensor& result) {
  for (const auto& kept : kept_) {
    if (kept->watch.includes(result)) kept->watch.add(result);
  }
  const KeptCall* const open = open_;
  return open != nullptr && open->watch.includes(result);
}

KeptCall* KeptResults::note_write(const at::Tensor& tensor, bool may_follow) {
  KeptCall* followed = nullptr;
  for (const auto& kept : kept_) {
    if (!kept->watch.includes(tensor)) continue;
    // What must be kept as it was returned is not what it is after a change.
    if (may_follow && kept.get() == open_ && (!kept->must || kept->offloads) &&
        !kept->is_function && !kept->watch.saw_change()) {
      followed = open_;
      // It is parked anew after the change.
      for (auto& parked : kept->parked) parked.reset();
    } else {
      kept->watch.note_change();
    }
  }
  return followed;
}

void KeptResults::close() {
  if (KeptCall* const kept = open_.exchange(nullptr)) kept->release_parked();
}

void KeptResults::follow(KeptCall& kept, std::size_t position, const at::Tensor& written) {
  kept.is_followed = true;
  kept.watch.expect_change(written);
  log_[position].followed = &kept;
}

void KeptResults::drop_unread() {
  const std::size_t end = saves_.empty() ? 0 : saves_.back();
  std::erase_if(kept_, [&](const auto& kept) {
    if (kept->must || kept->has_effects || kept->is_function || kept->position < end) return false;
    forget(kept->position);
    return true;
  });
}

void KeptResults::drop_changed() {
  std::erase_if(kept_, [&](const auto& kept) {
    if (kept->must || kept->has_effects || !kept->watch.saw_change()) return false;
    if (kept->is_function) {
      kept->results.clear();
      kept->parked.clear();
      kept->runs_again = true;
      return false;
    }
    forget(kept->position);
    return true;
  });
}

Walk KeptResults::begin_walk() const {
  Walk walk;
  for (const Call& call : log_) {
    if (call.kept == nullptr) continue;
    walk.to_fetch.insert(walk.to_fetch.end(), call.kept->parked.begin(), call.kept->parked.end());
  }
  return walk;
}

void KeptResults::note_difference(Walk& walk, std::string_view now) const {
  if (!walk.difference.empty()) return;
  const std::size_t at = walk.position;
  walk.difference = "operator call " + std::to_string(at) + " is " + std::string(now) +
                    " in the recomputation and ";
  if (at >= log_.size()) {
    walk.difference += "is not there in forward";
  } else if (const std::string then = name_of(*log_[at].schema); then == now) {
    walk.difference += "has arguments of other shapes in forward";
  } else {
    walk.difference += "was " + then + " in forward";
  }
}

namespace {

[[noreturn]] void fail(const Walk& walk, const c10::FunctionSchema& schema) {
  throw DeterminismError("selective checkpoint: the recomputation does not do what forward did: " +
                         walk.difference + ". The kept result of " + name_of(schema) +
                         " does not fit; keep what decides (a router's choice), too");
}

}  // namespace

// Up to here the walk may go before the next save.
std::size_t KeptResults::end_of_part(const Walk& walk) const {
  return walk.saves < saves_.size() ? saves_[walk.saves] : log_.size();
}

// The recomputation did not make this call. Where results of the operator were answered just
// before, they may have been this one's, and where they are `wanted`, this may be the one.
void KeptResults::leave_out(const Walk& walk, std::size_t position,
                            const c10::FunctionSchema* wanted) const {
  const Call& call = log_[position];
  if (call.kept == nullptr) return;
  if (call.schema == wanted || std::ranges::count(walk.answered, call.schema) != 0) {
    fail(walk, *call.schema);
  }
}

KeptResults::Found KeptResults::next_call(Walk& walk, const c10::FunctionSchema& schema,
                                          std::uint64_t shapes) const {
  const auto is_it = [&](const Call& call) {
    return call.schema == &schema && call.shapes == shapes;
  };
  const std::size_t end = end_of_part(walk);
  std::size_t at = walk.position;
  if (at >= end || !is_it(log_[at])) {
    note_difference(walk, name_of(schema));
    while (at < end && !is_it(log_[at])) leave_out(walk, at++, &schema);
    if (at >= end) {
      // A call that forward did not make here. Kept results of the operator may be its.
      const auto is_kept = [&](const Call& call) {
        return call.schema == &schema && call.kept != nullptr;
      };
      if (complete_ && std::any_of(log_.begin(), log_.end(), is_kept)) fail(walk, schema);
      return {};
    }
  }
  walk.position = at + 1;
  if (log_[at].followed != nullptr) return {log_[at].followed, /*is_write=*/true};
  KeptCall* const kept = log_[at].kept;
  if (kept != nullptr) walk.answered.push_back(&schema);
  return {kept};
}

void KeptResults::pass_save(Walk& walk, std::size_t index) const {
  if (index >= saves_.size()) return;
  walk.saves = index;
  const std::size_t end = end_of_part(walk);
  if (walk.position < end) note_difference(walk, "left out");
  for (; walk.position < end; ++walk.position) leave_out(walk, walk.position, nullptr);
  walk.answered.clear();
  walk.saves = index + 1;
}

void KeptResults::drop_everything() {
  for (const auto& kept : kept_) {
    if (!kept->holds_memory()) continue;
    kept->results.clear();
    kept->parked.clear();
    kept->draw.reset();
    kept->gone = true;
  }
}

}  // namespace reprise::selecting
