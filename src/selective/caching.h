// The two interceptors of a selective region: one that keeps in forward, one that answers in the
// recomputation.
#pragma once

#include <reprise/custom_function.h>
#include <reprise/selective.h>

#include <memory>

#include "libtorch/operator_interceptor.h"
#include "selective/kept_results.h"

namespace reprise::selecting {

class SelectiveInterceptor : public libtorch::OperatorInterceptor {
 public:
  // A custom autograd function is called.
  virtual void call_function(detail::FunctionCall& call) = 0;
};

// Stands for a custom autograd function among the operators; its address identifies it for good.
const c10::FunctionSchema& schema_of_function(const std::string& name);

std::shared_ptr<SelectiveInterceptor> make_caching(std::shared_ptr<KeptResults> kept,
                                                   SelectiveOptions options);
std::shared_ptr<SelectiveInterceptor> make_answering(std::shared_ptr<KeptResults> kept,
                                                     SelectiveOptions options);

}  // namespace reprise::selecting
