// How calls are kept and answered; selective.h states the rules.
#include "selective/caching.h"

#include <reprise/error.h>
#include <reprise/saved_tensor_hooks.h>
#include <reprise/store.h>

#include <utility>

#include "libtorch/operator_facts.h"
#include "libtorch/operator_schemas.h"
#include "libtorch/stub_history.h"
#include "selective/offloading.h"

namespace reprise::selecting {
namespace {

using detail::Verdict;
using libtorch::facts_of;
using libtorch::OperatorCall;
using libtorch::OperatorFacts;

// What policies are not asked about: it computes nothing, and LibTorch calls it where it likes.
bool is_ignored(const OperatorCall& call, const OperatorFacts& facts) {
  static const c10::FunctionSchema* const detach =
      libtorch::schemas_named("aten::detach.default").front();
  return facts.metadata_only || &call.schema() == detach;
}

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

// The generators that a call drew from, as they are now.
RandomState random_state_after(const OperatorFacts& facts, at::ArrayRef<c10::IValue> arguments,
                               at::ArrayRef<c10::IValue> results) {
  if (facts.generator != OperatorFacts::kNone && arguments[facts.generator].isGenerator()) {
    const at::Generator generator = arguments[facts.generator].toGenerator();
    return RandomState::of_generators({&generator, 1});
  }
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : results) {
    mapped(value, [&](const at::Tensor& tensor) {
      tensors.push_back(tensor);
      return tensor;
    });
  }
  return RandomState::of_devices(accelerator_devices(tensors));
}

class Caching final : public SelectiveInterceptor {
 public:
  Caching(std::shared_ptr<KeptResults> kept, SelectiveOptions options)
      : kept_(std::move(kept)), options_(std::move(options)) {}
  // What was changed in place meanwhile, and need not be kept, holds memory for nothing.
  ~Caching() override {
    if (options_.allow_cache_entry_mutation) return;
    std::lock_guard<std::mutex> lock(kept_->mutex);
    kept_->drop_changed();
  }
  Caching(const Caching&) = delete;
  Caching& operator=(const Caching&) = delete;

  void intercept(OperatorCall& call) override;
  void call_function(detail::FunctionCall& call) override;

 private:
  void keep(const OperatorCall& call, const OperatorFacts& facts, const Verdict& verdict,
            const SelectiveCheckpointContext& context, KeptCall entry);
  void note_sharers(const OperatorCall& call);
  bool may_keep(const OperatorCall& call, const OperatorFacts& facts,
                CheckpointPolicy policy) const;

  const std::shared_ptr<KeptResults> kept_;
  const SelectiveOptions options_;
};

void Caching::intercept(OperatorCall& call) {
  const OperatorFacts& facts = facts_of(call.handle());
  if (is_ignored(call, facts)) return;
  KeptCall entry;
  std::optional<Verdict> verdict;
  const std::uint64_t shapes = shapes_of(call.arguments());
  {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    verdict = kept_->begin_call(call.schema(), shapes, entry);
  }
  const auto recomputes = [](CheckpointPolicy policy) {
    return !saves(policy) && !offloads(policy);
  };
  if (verdict && (recomputes(verdict->policy) || !may_keep(call, facts, verdict->policy))) {
    call.proceed();
    return note_sharers(call);
  }

  const c10::SmallVector<c10::IValue, 8> arguments(call.arguments().begin(),
                                                   call.arguments().end());
  call.proceed();
  const SelectiveCheckpointContext context(call.schema(), arguments, call.results(), entry.number);
  if (!verdict) {
    verdict = kept_->rule().decide(context);
    if (recomputes(verdict->policy) || !may_keep(call, facts, verdict->policy)) {
      return note_sharers(call);
    }
  }
  note_sharers(call);
  keep(call, facts, *verdict, context, std::move(entry));
}

// Views that the schema declares count with their base. Memory that only this result has needs no
// look at what is kept.
void Caching::note_sharers(const OperatorCall& call) {
  const auto results = call.results();
  const auto& declared = call.schema().returns();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const c10::IValue& result = results[i];
    if (!result.isTensor() || declared[i].alias_info() != nullptr) continue;
    const at::Tensor& tensor = result.toTensor();
    if (!tensor.defined() || !tensor.has_storage() || tensor.storage().use_count() == 1) continue;
    std::lock_guard<std::mutex> lock(kept_->mutex);
    kept_->note_sharer(tensor);
  }
}

bool Caching::may_keep(const OperatorCall& call, const OperatorFacts& facts,
                       CheckpointPolicy policy) const {
  if (call.schema().is_mutable()) {
    if (!must(policy)) return false;
    throw UsageError("selective checkpoint: the policy says " +
                     std::string(saves(policy) ? "kMustSave" : "kMustCpuOffload") + " of " +
                     name_of(call.schema()) +
                     ", which changes its arguments in place: a kept result cannot take the place "
                     "of that. Answer kPreferSave, which recomputes it");
  }
  return !facts.aliases || must(policy);
}

void Caching::keep(const OperatorCall& call, const OperatorFacts& facts, const Verdict& verdict,
                   const SelectiveCheckpointContext& context, KeptCall entry) {
  const auto results = call.results();
  if (facts.draws_random) {
    entry.random_after = random_state_after(facts, context.arguments(), results);
  }
  entry.must = must(verdict.policy);
  Offloading offloading(call.schema(), verdict.policy, options_.store);
  for (const c10::IValue& result : results) {
    entry.results.push_back(mapped(result, [&](const at::Tensor& tensor) {
      auto parked = offloading.park(tensor);
      at::Tensor alias = parked != nullptr ? at::Tensor() : alias_of(tensor);
      if (offloading.wanted()) entry.parked.push_back(std::move(parked));
      entry.versions.push_back(version_or_zero(alias));
      return alias;
    }));
  }
  const bool limited = verdict.limit != nullptr;
  const Bytes bytes = limited ? context.result_bytes() : Bytes();
  const double worth =
      limited && bytes.count > 0 ? context.flops() / static_cast<double>(bytes.count) : 0.0;
  std::lock_guard<std::mutex> lock(kept_->mutex);
  kept_->keep(call.schema(), std::move(entry), verdict.limit, bytes, worth);
}

// What it saves for backward stays with its node, outside of the region's care, and its operators
// are no business of the policy.
void Caching::call_function(detail::FunctionCall& call) {
  const c10::FunctionSchema& schema = schema_of_function(call.name);
  KeptCall entry;
  std::optional<Verdict> verdict;
  {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    verdict = kept_->begin_call(schema, /*shapes=*/0, entry);
  }
  if (!verdict) verdict = kept_->rule().decide({schema, {}, {}, entry.number});
  if (verdict->policy == CheckpointPolicy::kMustCpuOffload) {
    throw UsageError("selective checkpoint: the policy says kMustCpuOffload of " + call.name +
                     ", a custom autograd function, whose saved tensors stay with its node; answer "
                     "kMustSave, or put an Offload scope into its forward()");
  }
  const libtorch::WithoutInterceptor inside(*this);
  if (!saves(verdict->policy) && !offloads(verdict->policy)) return detail::call_function(call);
  {
    const NoSavedTensorHooks unmanaged;
    detail::call_function(call);
  }
  for (const at::Tensor& result : call.results()) {
    const at::Tensor alias = alias_of(result);
    entry.results.emplace_back(alias);
    entry.versions.push_back(version_or_zero(alias));
    entry.required_grad.push_back(result.defined() && result.requires_grad());
  }
  entry.must = must(verdict->policy);
  std::lock_guard<std::mutex> lock(kept_->mutex);
  kept_->keep(schema, std::move(entry), nullptr, Bytes(), 0);
}

class Answering final : public SelectiveInterceptor {
 public:
  Answering(std::shared_ptr<KeptResults> kept, SelectiveOptions options)
      : kept_(std::move(kept)), options_(std::move(options)) {
    std::lock_guard<std::mutex> lock(kept_->mutex);
    kept_->begin_recomputation();
    kept_->prefetch();
  }
  // What the recomputation did not come to is not wanted any more.
  ~Answering() override {
    if (options_.reuse) return;
    std::lock_guard<std::mutex> lock(kept_->mutex);
    kept_->drop_everything();
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  void intercept(OperatorCall& call) override;
  void call_function(detail::FunctionCall& call) override;

 private:
  std::optional<KeptCall> take(const c10::FunctionSchema& schema, std::uint64_t shapes);
  void fetch(KeptCall& kept);

  const std::shared_ptr<KeptResults> kept_;
  const SelectiveOptions options_;
};

std::optional<KeptCall> Answering::take(const c10::FunctionSchema& schema, std::uint64_t shapes) {
  std::lock_guard<std::mutex> lock(kept_->mutex);
  bool used_up = false;
  KeptCall* const found = kept_->next_call(schema, shapes, used_up);
  if (used_up) {
    throw DeterminismError(
        "selective checkpoint: Trying to backward an extra time: the kept result of " +
        name_of(schema) +
        " was used by an earlier recomputation. A selective region can be recomputed once; for "
        "several backward calls (retain_graph, second derivatives) set SelectiveOptions::reuse, or "
        "make them share a GraphExecGroup");
  }
  if (found == nullptr) return std::nullopt;
  if (!options_.allow_cache_entry_mutation && found->is_changed()) {
    if (!found->must) return std::nullopt;
    throw DeterminismError(
        "selective checkpoint: the kept result of " + name_of(schema) +
        " has been mutated: it was changed in place after the operator returned it. Answer "
        "kPreferSave, which recomputes it then, or set "
        "SelectiveOptions::allow_cache_entry_mutation to use the changed value");
  }
  if (found->shapes != shapes) {
    throw DeterminismError(
        "selective checkpoint: the recomputation does not do what forward did: " +
        kept_->first_difference() + ". The kept result of " + name_of(schema) +
        " does not fit; keep what decides (a router's choice), too");
  }
  if (options_.reuse) return found->copy();
  KeptCall taken = std::move(*found);
  found->gone = true;
  return taken;
}

void Answering::fetch(KeptCall& kept) {
  std::size_t next = 0;
  for (c10::IValue& result : kept.results) {
    result = mapped(result, [&](const at::Tensor& tensor) {
      const auto& parked = kept.parked[next++];
      return parked != nullptr ? parked->load() : tensor;
    });
  }
  kept.parked.clear();
  std::lock_guard<std::mutex> lock(kept_->mutex);
  kept_->prefetch();
}

void Answering::intercept(OperatorCall& call) {
  if (is_ignored(call, facts_of(call.handle()))) return;
  auto kept = take(call.schema(), shapes_of(call.arguments()));
  if (!kept) return;
  if (!kept->parked.empty()) fetch(*kept);
  if (!kept->random_after.empty()) kept->random_after.restore();
  call.answer(kept->results);
}

void Answering::call_function(detail::FunctionCall& call) {
  const c10::FunctionSchema& schema = schema_of_function(call.name);
  const auto kept = take(schema, /*shapes=*/0);
  if (!kept) {
    const libtorch::WithoutInterceptor inside(*this);
    return detail::call_function(call);
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& result : kept->results) {
    const at::Tensor& tensor = result.toTensor();
    results.push_back(kept->required_grad[results.size()] ? libtorch::with_stub_history(tensor)
                                                          : tensor);
  }
  call.answer(std::move(results));
}

}  // namespace

std::shared_ptr<SelectiveInterceptor> make_caching(std::shared_ptr<KeptResults> kept,
                                                   SelectiveOptions options) {
  return std::make_shared<Caching>(std::move(kept), std::move(options));
}

std::shared_ptr<SelectiveInterceptor> make_answering(std::shared_ptr<KeptResults> kept,
                                                     SelectiveOptions options) {
  return std::make_shared<Answering>(std::move(kept), std::move(options));
}

}  // namespace reprise::selecting
