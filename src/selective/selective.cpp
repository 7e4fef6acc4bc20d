// The entry points of selective.h.

#include <reprise/selective.h>

#include <reprise/error.h>

#include <map>
#include <utility>

#include "core/recycling_allocator.h"
#include "libtorch/operators/ordered_effects.h"
#include "selective/caching.h"
#include "selective/policy_rule.h"

namespace reprise {
namespace selecting {

const c10::FunctionSchema& schema_of_function(const std::string& name) {
  static auto* const mutex = new std::mutex;
  static auto* const schemas = new std::map<std::string, c10::FunctionSchema>;
  std::lock_guard<std::mutex> lock(*mutex);
  return schemas
      ->try_emplace(name, name, std::string(), std::vector<c10::Argument>(),
                    std::vector<c10::Argument>())
      .first->second;
}

}  // namespace selecting

namespace {

// Asks this interceptor and those around it.
void call_function_from(const libtorch::InterceptorLink* link, detail::FunctionCall& call) {
  for (; link != nullptr; link = libtorch::link_in_force(link->outer.get())) {
    auto* selective = dynamic_cast<selecting::SelectiveInterceptor*>(link->interceptor.get());
    if (selective != nullptr) return selective->call_function(call);
    const auto proceed = [&] {
      call_function_from(libtorch::link_in_force(link->outer.get()), call);
    };
    if (link->interceptor->intercept_function(call, proceed)) return;
  }
  call.run();
}

}  // namespace

namespace detail {

void call_function(FunctionCall& call) {
  call_function_from(libtorch::innermost_interceptor(), call);
}

}  // namespace detail

namespace {

// What is in force while a region's function runs.
struct Scope {
  explicit Scope(std::shared_ptr<selecting::SelectiveInterceptor> selective)
      : interceptor(std::move(selective)), in_force(interceptor) {}
  const std::shared_ptr<selecting::SelectiveInterceptor> interceptor;
  const libtorch::OperatorInterceptorScope in_force;
};

}  // namespace

RegionContexts create_selective_checkpoint_contexts(OperatorPolicy policy,
                                                    SelectiveOptions options) {
  const auto kept = std::allocate_shared<selecting::KeptResults>(
      RecyclingAllocator<selecting::KeptResults>(), detail::PolicyRuleAccess::rule_of(policy));
  return {
      .forward =
          [kept, options] {
            return std::make_shared<Scope>(selecting::make_caching(kept, options));
          },
      .recompute =
          [kept, options] {
            return std::make_shared<Scope>(selecting::make_answering(kept, options));
          },
      .explain =
          [kept] {
            std::lock_guard<std::mutex> lock(kept->mutex);
            return kept->difference;
          },
      .on_save = [](void* scope,
                    std::size_t index) { static_cast<Scope*>(scope)->interceptor->on_save(index); },
      .recomputed =
          [kept, options] {
            if (options.reuse) return;
            std::lock_guard<std::mutex> lock(kept->mutex);
            kept->drop_everything();
          }};
}

void declare_ordered_effects(std::string_view op, bool has_effects) {
  const libtorch::Declaration done = libtorch::declare_ordered_effects(op, has_effects);
  if (done == libtorch::Declaration::kDone) return;
  const std::string about = "declare_ordered_effects(): " + std::string(op);
  if (done == libtorch::Declaration::kUnknown) {
    throw UsageError(about +
                     " is no operator that LibTorch knows; load the library that registers it "
                     "first, and give a name such as 'my_ops::log' or 'my_ops::log.overload'");
  }
  throw UsageError(about +
                   " writes to an argument or returns a view of one, so that a kept result cannot "
                   "take the place of a run; declare an operator that only returns new tensors");
}

std::function<RegionContexts()> selective(OperatorPolicy policy, SelectiveOptions options) {
  libtorch::operator_interceptor_variant();
  return [policy = std::move(policy), options = std::move(options)] {
    return create_selective_checkpoint_contexts(policy, options);
  };
}

}  // namespace reprise
