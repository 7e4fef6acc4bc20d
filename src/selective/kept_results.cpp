#include "selective/kept_results.h"

#include <reprise/store.h>

#include <algorithm>
#include <utility>

#include "libtorch/saved_tensor.h"

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
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      state = mix(state, argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const c10::IValue& element : argument.toListRef())
        state = mix(state, element.toTensor());
    }
  }
  return state;
}

at::Tensor alias_of(const at::Tensor& tensor) {
  return tensor.defined() ? libtorch::alias_without_history(tensor) : tensor;
}

std::uint32_t version_or_zero(const at::Tensor& tensor) {
  return tensor.defined() ? libtorch::version_of(tensor) : 0;
}

bool KeptCall::is_changed() const {
  std::size_t next = 0;
  bool changed = false;
  for (const c10::IValue& result : results) {
    mapped(result, [&](const at::Tensor& tensor) {
      changed = changed || version_or_zero(tensor) != versions[next];
      ++next;
      return tensor;
    });
  }
  return changed || std::any_of(sharers.begin(), sharers.end(), [](const auto& sharer) {
           return version_or_zero(sharer.first) != sharer.second;
         });
}

KeptCall KeptCall::copy() const {
  KeptCall copied = *this;
  for (c10::IValue& result : copied.results) result = mapped(result, alias_of);
  return copied;
}

KeptResults::KeptResults(std::shared_ptr<const detail::PolicyRule> rule) : rule_(std::move(rule)) {
  // What a transformer block needs: growing step by step would cost as much as an operator.
  operators_.reserve(24);
  log_.reserve(64);
}

KeptResults::~KeptResults() = default;

CallsOfOperator& KeptResults::calls_of(const c10::FunctionSchema& schema) {
  for (CallsOfOperator& calls : operators_) {
    if (calls.schema == &schema) return calls;
  }
  CallsOfOperator& calls = operators_.emplace_back();
  calls.schema = &schema;
  calls.verdict = rule_->by_operator(schema);
  return calls;
}

std::optional<detail::Verdict> KeptResults::begin_call(const c10::FunctionSchema& schema,
                                                       std::uint64_t shapes, KeptCall& call) {
  CallsOfOperator& calls = calls_of(schema);
  call.number = calls.calls++;
  call.position = log_.size();
  call.shapes = shapes;
  log_.push_back({&schema, shapes});
  return calls.verdict;
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
    if (cheapest.schema == call.schema && cheapest.number == call.number) {
      kept = false;
    } else {
      remove(cheapest);
    }
  }
  return kept;
}

void KeptResults::remove(const Limited& call) {
  auto& kept = calls_of(*call.schema).kept;
  const auto entry = std::find_if(kept.begin(), kept.end(), [&](const auto& candidate) {
    return candidate->number == call.number;
  });
  if (entry != kept.end()) kept.erase(entry);
}

void KeptResults::keep(const c10::FunctionSchema& schema, KeptCall call,
                       const detail::ByteLimit* limit, Bytes bytes, double worth) {
  if (limit != nullptr && !fits({worth, &schema, call.number, bytes}, *limit)) return;
  auto& kept = calls_of(schema).kept;
  // Threads of one function may finish their calls in another order than they began them.
  const auto place = std::upper_bound(
      kept.begin(), kept.end(), call.number,
      [](std::int64_t number, const auto& other) { return number < other->number; });
  kept.insert(place, std::make_unique<KeptCall>(std::move(call)));
}

void KeptResults::note_sharer(const at::Tensor& result) {
  for (CallsOfOperator& calls : operators_) {
    for (const auto& kept : calls.kept) {
      bool shares = false;
      for (const c10::IValue& value : kept->results) {
        mapped(value, [&](const at::Tensor& tensor) {
          shares = shares || (tensor.defined() && tensor.is_alias_of(result));
          return tensor;
        });
      }
      if (shares) kept->sharers.emplace_back(alias_of(result), version_or_zero(result));
    }
  }
}

void KeptResults::drop_changed() {
  for (CallsOfOperator& calls : operators_) {
    std::erase_if(calls.kept, [](const auto& kept) { return !kept->must && kept->is_changed(); });
  }
}

void KeptResults::begin_recomputation() {
  for (CallsOfOperator& calls : operators_) {
    calls.calls_again = 0;
    calls.next_kept = 0;
  }
  position_ = 0;
  difference_.clear();
  to_fetch_.clear();
  fetched_ = 0;
  std::vector<const KeptCall*> offloaded;
  for (const CallsOfOperator& calls : operators_) {
    for (const auto& kept : calls.kept) {
      if (!kept->parked.empty()) offloaded.push_back(kept.get());
    }
  }
  std::sort(offloaded.begin(), offloaded.end(),
            [](const KeptCall* a, const KeptCall* b) { return a->position < b->position; });
  for (const KeptCall* kept : offloaded) {
    to_fetch_.insert(to_fetch_.end(), kept->parked.begin(), kept->parked.end());
  }
}

KeptCall* KeptResults::next_call(const c10::FunctionSchema& schema, std::uint64_t shapes,
                                 bool& used_up) {
  used_up = false;
  const std::size_t position = position_++;
  if (difference_.empty() && (position >= log_.size() || log_[position].schema != &schema ||
                              log_[position].shapes != shapes)) {
    difference_ = "operator call " + std::to_string(position) + " is " + name_of(schema) +
                  " in the recomputation and ";
    difference_ += position >= log_.size() ? "is not there in forward"
                   : log_[position].schema == &schema
                       ? "has arguments of other shapes in forward"
                       : "was " + name_of(*log_[position].schema) + " in forward";
  }
  CallsOfOperator& calls = calls_of(schema);
  const std::int64_t number = calls.calls_again++;
  while (calls.next_kept < calls.kept.size() && calls.kept[calls.next_kept]->number < number) {
    ++calls.next_kept;
  }
  if (calls.next_kept == calls.kept.size()) return nullptr;
  KeptCall& kept = *calls.kept[calls.next_kept];
  if (kept.number != number) return nullptr;
  if (kept.gone) {
    used_up = true;
    return nullptr;
  }
  return &kept;
}

void KeptResults::drop_everything() {
  to_fetch_.clear();
  for (CallsOfOperator& calls : operators_) {
    for (const auto& kept : calls.kept) {
      kept->results.clear();
      kept->sharers.clear();
      kept->parked.clear();
      kept->gone = true;
    }
  }
}

void KeptResults::prefetch() {
  for (; fetched_ < to_fetch_.size(); ++fetched_) {
    const auto parked = to_fetch_[fetched_].lock();
    if (parked != nullptr && !parked->prefetch()) return;
  }
}

std::string KeptResults::first_difference() const { return difference_; }

}  // namespace reprise::selecting
