// How calls are kept in forward; selective.h states the rules.
#include "selective/caching.h"

#include <reprise/error.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "libtorch/autograd/saved_tensor.h"
#include "libtorch/base/ambient_state.h"
#include "libtorch/operators/operator_effects.h"
#include "libtorch/operators/operator_schemas.h"
#include "selective/function_effects.h"
#include "selective/hooked_results.h"
#include "selective/offloading.h"

namespace reprise::selecting {
namespace {

using detail::Verdict;
using libtorch::facts_of;
using libtorch::OperatorCall;
using libtorch::OperatorFacts;

bool saves(CheckpointPolicy policy) {
  return policy == CheckpointPolicy::kMustSave || policy == CheckpointPolicy::kPreferSave;
}
bool offloads(CheckpointPolicy policy) {
  return policy == CheckpointPolicy::kMustCpuOffload ||
         policy == CheckpointPolicy::kPreferCpuOffload;
}
bool must(CheckpointPolicy policy) {
  return policy == CheckpointPolicy::kMustSave || policy == CheckpointPolicy::kMustCpuOffload;
}
bool recomputes(CheckpointPolicy policy) { return !saves(policy) && !offloads(policy); }

// Some schemas do not say it (native_batch_norm), and some do it only in training.
bool changes_arguments(const OperatorFacts& facts, at::ArrayRef<c10::IValue> arguments) {
  return std::any_of(facts.writes.begin(), facts.writes.end(),
                     [&](const auto& write) { return write.happens(arguments); });
}

[[noreturn]] void refuse(CheckpointPolicy policy, const std::string& name) {
  throw UsageError("selective checkpoint: the policy says " +
                   std::string(saves(policy) ? "kMustSave" : "kMustCpuOffload") + " of " + name +
                   ", which changes its arguments in place: a kept result cannot take the place "
                   "of that. Answer kPreferSave, which recomputes it");
}

class Caching final : public SelectiveInterceptor {
 public:
  Caching(std::shared_ptr<KeptResults> kept, SelectiveOptions options)
      : kept_(std::move(kept)), options_(std::move(options)) {}
  // What was changed in place meanwhile, and need not be kept, holds memory for nothing.
  ~Caching() override {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    kept_->end_forward();
    if (!options_.allow_cache_entry_mutation) kept_->drop_changed();
  }
  Caching(const Caching&) = delete;
  Caching& operator=(const Caching&) = delete;

  void intercept(OperatorCall& call) override;
  void call_function(detail::FunctionCall& call) override;
  void on_save(std::size_t) override {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    kept_->note_save();
  }

 private:
  void keep(const OperatorCall& call, const OperatorFacts& facts, const Verdict& verdict,
            const SelectiveCheckpointContext& context, std::size_t position);
  void intercept_write(OperatorCall& call, const OperatorFacts& facts);
  std::shared_ptr<ParkedTensor> park(const Offloading& offloading, const at::Tensor& tensor,
                                     bool is_private) const;
  void keep_draw(const OperatorFacts& facts, at::ArrayRef<c10::IValue> arguments,
                 const Verdict& verdict, std::size_t position);
  void note_results(const OperatorCall& call, const OperatorFacts& facts);

  const std::shared_ptr<KeptResults> kept_;
  const SelectiveOptions options_;
};

// Whether to keep what a call returned or will return, as the policy says. New tensors (zeros) cost
// nothing to make again, and are filled in ways that are not seen.
bool may_keep(const OperatorFacts& facts, CheckpointPolicy policy) {
  if (facts.ordered_effects) return policy != CheckpointPolicy::kMustRecompute;
  if (recomputes(policy)) return false;
  return (!facts.aliases && !facts.makes_new) || must(policy);
}

// By the policy in a store, or else by the program's hooks; null if the tensor stays as it is. By a
// counter of its own: whether the value is still right is watched by the kept call.
std::shared_ptr<ParkedTensor> Caching::park(const Offloading& offloading, const at::Tensor& tensor,
                                            bool is_private) const {
  if (!tensor.defined()) return nullptr;
  if (offloading.wanted()) {
    auto parked = offloading.park(libtorch::alias_with_own_counter(tensor));
    if (parked != nullptr) return parked;
  }
  return options_.respect_saved_tensors_hooks ? pack_by_hooks(tensor, is_private) : nullptr;
}

// An operator that changes one argument and gives it back, and has no other effects but draws.
bool changes_one_argument(const OperatorCall& call, const OperatorFacts& facts) {
  const auto& returns = call.schema().returns();
  return facts.writes.size() == 1 && !facts.changes_shape && returns.size() == 1 &&
         returns[0].alias_info() != nullptr &&
         call.arguments()[facts.writes[0].argument].isTensor();
}

void Caching::intercept(OperatorCall& call) {
  const OperatorFacts& facts = facts_of(call.handle());
  if (is_ignored(call, facts)) return;
  if (!facts.writes.empty() && changes_arguments(facts, call.arguments())) {
    return intercept_write(call, facts);
  }
  const std::uint64_t shapes = shapes_of(call.arguments());
  KeptResults::Begun begun;
  {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    begun = kept_->begin_call(call.schema(), shapes);
  }
  if (begun.verdict && !may_keep(facts, begun.verdict->policy)) {
    call.proceed();
    return note_results(call, facts);
  }

  const c10::SmallVector<c10::IValue, 8> arguments(call.arguments().begin(),
                                                   call.arguments().end());
  call.proceed();
  const SelectiveCheckpointContext context(call.schema(), arguments, call.results(), begun.number);
  const Verdict verdict = begun.verdict ? *begun.verdict : kept_->rule().decide(context);
  note_results(call, facts);
  if (may_keep(facts, verdict.policy)) {
    keep(call, facts, verdict, context, begun.position);
  }
}

// What it writes to may be a kept result: nn::Linear adds its bias to a product in place.
void Caching::intercept_write(OperatorCall& call, const OperatorFacts& facts) {
  const bool changes_one = changes_one_argument(call, facts);
  const bool follows = changes_one && !facts.draws_random;
  const std::uint64_t shapes = shapes_of(call.arguments());
  const c10::SmallVector<c10::IValue, 8> arguments(call.arguments().begin(),
                                                   call.arguments().end());
  KeptResults::Begun begun;
  KeptCall* followed = nullptr;
  {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    begun = kept_->begin_call(call.schema(), shapes);
    for (const auto& write : facts.writes) {
      visit_tensors(at::ArrayRef<c10::IValue>(arguments).slice(write.argument, 1),
                    [&](const at::Tensor& tensor) {
                      if (!tensor.defined() || !tensor.has_storage()) return;
                      followed = kept_->note_write(tensor, follows);
                    });
    }
  }
  // Nothing can be kept of it but a draw.
  const auto check = [&](CheckpointPolicy policy) {
    if (must(policy)) refuse(policy, name_of(call.schema()));
  };
  if (begun.verdict) check(begun.verdict->policy);
  call.proceed();
  const Verdict verdict =
      begun.verdict
          ? *begun.verdict
          : kept_->rule().decide({call.schema(), arguments, call.results(), begun.number});
  check(verdict.policy);
  if (facts.draws_random && changes_one && saves(verdict.policy)) {
    keep_draw(facts, arguments, verdict, begun.position);
  }
  if (followed != nullptr && !followed->parked.empty()) {
    const Offloading offloading(kept_->schema_at(followed->position),
                                !followed->offloads ? CheckpointPolicy::kPreferSave
                                : followed->must    ? CheckpointPolicy::kMustCpuOffload
                                                    : CheckpointPolicy::kPreferCpuOffload,
                                options_.store);
    std::size_t next = 0;
    visit_tensors(followed->results, [&](const at::Tensor& tensor) {
      followed->parked[next++] = park(offloading, tensor, followed->is_private);
    });
  }
  std::lock_guard<std::mutex> lock(kept_->mutex);
  if (followed == nullptr) return kept_->close();
  kept_->follow(*followed, begun.position, arguments[facts.writes[0].argument].toTensor());
}

void Caching::keep_draw(const OperatorFacts& facts, at::ArrayRef<c10::IValue> arguments,
                        const Verdict& verdict, std::size_t position) {
  const at::Tensor& drawn = arguments[facts.writes[0].argument].toTensor();
  const auto generator = libtorch::generator_of_draw(facts, arguments);
  auto draw = generator ? KeptDraw::of(drawn) : nullptr;
  if (draw == nullptr) return;
  auto entry = std::make_unique<KeptCall>();
  entry->position = position;
  entry->drawn.push_back({*generator, RandomState::of_generators({&*generator, 1})});
  const Bytes bytes = draw->bytes();
  entry->draw = std::move(draw);
  std::lock_guard<std::mutex> lock(kept_->mutex);
  kept_->keep(std::move(entry), verdict.limit, bytes,
              static_cast<double>(drawn.numel()) / static_cast<double>(bytes.count));
}

// Views that the schema declares count with their base. Memory that only this result has needs no
// look at what is kept.
void Caching::note_results(const OperatorCall& call, const OperatorFacts& facts) {
  const auto results = call.results();
  const auto& declared = call.schema().returns();
  bool is_view = facts.aliases;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (declared[i].alias_info() != nullptr) continue;
    visit_tensors(results.slice(i, 1), [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage() || tensor.storage().use_count() == 1) return;
      std::lock_guard<std::mutex> lock(kept_->mutex);
      is_view = kept_->note_sharer(tensor) || is_view;
    });
  }
  if (is_view || !kept_->is_open()) return;
  std::lock_guard<std::mutex> lock(kept_->mutex);
  kept_->close();
}

void Caching::keep(const OperatorCall& call, const OperatorFacts& facts, const Verdict& verdict,
                   const SelectiveCheckpointContext& context, std::size_t position) {
  auto entry = std::make_unique<KeptCall>();
  entry->position = position;
  entry->must = must(verdict.policy);
  entry->offloads = offloads(verdict.policy);
  entry->has_effects = facts.ordered_effects;
  if (const auto generator = libtorch::generator_of_draw(facts, context.arguments())) {
    entry->drawn.push_back({*generator, RandomState::of_generators({&*generator, 1})});
  }
  const Offloading offloading(call.schema(), verdict.policy, options_.store);
  const bool parks = offloading.wanted() || options_.respect_saved_tensors_hooks;
  for (const c10::IValue& result : call.results()) {
    entry->results.push_back(mapped(result, [&](const at::Tensor& tensor) {
      at::Tensor alias;
      if (facts.makes_new) {
        // What becomes of the tensor itself is not seen.
        alias = tensor.clone();
        entry->is_private = true;
      } else {
        alias = alias_of(tensor);
        entry->watch.add(tensor);
      }
      if (parks) entry->parked.push_back(park(offloading, alias, facts.makes_new));
      return alias;
    }));
  }
  entry->drop_empty_parked();
  const bool limited = verdict.limit != nullptr && !facts.ordered_effects;
  const Bytes bytes = limited ? context.result_bytes() : Bytes();
  const double worth =
      limited && bytes.count > 0 ? context.flops() / static_cast<double>(bytes.count) : 0.0;
  std::lock_guard<std::mutex> lock(kept_->mutex);
  kept_->keep(std::move(entry), limited ? verdict.limit : nullptr, bytes, worth);
}

// What it saves for backward stays with its node, outside of the region's care, and its operators
// are no business of the policy, but for those with ordered effects.
void Caching::call_function(detail::FunctionCall& call) {
  const c10::FunctionSchema& schema = schema_of_function(call.name);
  KeptResults::Begun begun;
  {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    begun = kept_->begin_call(schema, /*shapes=*/0);
  }
  const CheckpointPolicy policy = begun.verdict
                                      ? begun.verdict->policy
                                      : kept_->rule().decide({schema, {}, {}, begun.number}).policy;
  if (policy == CheckpointPolicy::kMustCpuOffload) {
    throw UsageError("selective checkpoint: the policy says kMustCpuOffload of " + call.name +
                     ", a custom autograd function, whose saved tensors stay with its node; answer "
                     "kMustSave, or put an OffloadScope into its forward()");
  }
  if (recomputes(policy)) {
    const libtorch::WithoutInterceptor inside(*this, only_effects());
    return detail::call_function(call);
  }
  auto entry = std::make_unique<KeptCall>();
  std::atomic<bool> has_effects = false;
  const libtorch::WithoutInterceptor inside(
      *this, std::make_shared<OnEffects>([&](OperatorCall&) { has_effects = true; }));
  const auto effects = FunctionEffects::of([&] {
    const PastRegionsScope saves(options_.respect_saved_tensors_hooks);
    detail::call_function(call);
  });
  entry->position = begun.position;
  entry->is_function = true;
  entry->must = policy == CheckpointPolicy::kMustSave;
  entry->has_effects = has_effects;
  entry->runs_again = effects->wrote();
  if (entry->runs_again && entry->must && effects->surely_wrote()) refuse(policy, call.name);
  if (entry->runs_again && has_effects) {
    throw UsageError(
        "selective checkpoint: the policy keeps " + call.name +
        ", which writes to memory that it did not make and must run again for that. But "
        "it calls an operator with ordered effects, which must run once. Answer "
        "kPreferRecompute, which keeps what that operator returns");
  }
  entry->drawn = effects->drawn();
  if (!entry->runs_again) {
    const Offloading stays(schema, CheckpointPolicy::kPreferSave, options_.store);
    for (const at::Tensor& result : call.results()) {
      entry->watch.add(result);
      entry->results.emplace_back(alias_of(result));
      entry->parked.push_back(park(stays, result, /*is_private=*/false));
      entry->required_grad.push_back(result.defined() && result.requires_grad());
    }
    entry->drop_empty_parked();
  }
  std::lock_guard<std::mutex> lock(kept_->mutex);
  kept_->keep(std::move(entry), nullptr, Bytes(), 0);
}

}  // namespace

SelectiveInterceptor::SelectiveInterceptor() : autocast_off_(libtorch::autocast_keys_off()) {}

bool SelectiveInterceptor::is_ignored(const OperatorCall& call, const OperatorFacts& facts) const {
  static const c10::FunctionSchema* const detach =
      libtorch::schemas_named("aten::detach.default").front();
  static const c10::FunctionSchema* const cast =
      libtorch::schemas_named("aten::_to_copy.default").front();
  if (facts.metadata_only || &call.schema() == detach) return true;
  if (&call.schema() == cast && libtorch::autocast_keys_off() != autocast_off_) return true;
  const auto* state = libtorch::current_state();
  return state != nullptr && state->own_work;
}

std::shared_ptr<libtorch::OperatorInterceptor> SelectiveInterceptor::only_effects() {
  return std::make_shared<OnEffects>([this](OperatorCall& call) { intercept(call); });
}

std::shared_ptr<SelectiveInterceptor> make_caching(std::shared_ptr<KeptResults> kept,
                                                   SelectiveOptions options) {
  return std::make_shared<Caching>(std::move(kept), std::move(options));
}

}  // namespace reprise::selecting
