// The entry points of selective.h and custom_function.h.

#include <reprise/custom_function.h>
#include <reprise/selective.h>

#include <map>
#include <utility>

#include "selective/caching.h"

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

namespace detail {

void call_function(FunctionCall& call) {
  for (const auto* link = libtorch::innermost_interceptor(); link != nullptr;
       link = link->outer.get()) {
    auto* selective = dynamic_cast<selecting::SelectiveInterceptor*>(link->interceptor.get());
    if (selective != nullptr) return selective->call_function(call);
  }
  call.run();
}

std::string short_type_name(std::string_view demangled) {
  // "(anonymous namespace)::Mine", "my::space::Mine": the last part, unless it is in a template's
  // argument list.
  const std::size_t end = demangled.find('<');
  const std::size_t colons = demangled.substr(0, end).rfind("::");
  return std::string(colons == std::string_view::npos ? demangled : demangled.substr(colons + 2));
}

}  // namespace detail

RegionContexts create_selective_checkpoint_contexts(OperatorPolicy policy,
                                                    SelectiveOptions options) {
  const auto kept = std::make_shared<selecting::KeptResults>(policy.rule());
  return {.forward =
              [kept, options] {
                return std::make_shared<libtorch::OperatorInterceptorScope>(
                    selecting::make_caching(kept, options));
              },
          .recompute =
              [kept, options] {
                return std::make_shared<libtorch::OperatorInterceptorScope>(
                    selecting::make_answering(kept, options));
              },
          .explain =
              [kept] {
                std::lock_guard<std::mutex> lock(kept->mutex);
                return kept->first_difference();
              }};
}

std::function<RegionContexts()> selective(OperatorPolicy policy, SelectiveOptions options) {
  libtorch::operator_interceptor_variant();
  return [policy = std::move(policy), options = std::move(options)] {
    return create_selective_checkpoint_contexts(policy, options);
  };
}

}  // namespace reprise
