#include "libtorch/base/leaving_errors.h"

#include <utility>

namespace reprise::libtorch {
namespace {

thread_local int calls_inside = 0;
// The innermost of these calls came from there.
thread_local const void* position_of_call = nullptr;
HostLanguage host;

const void* position() { return host.position == nullptr ? nullptr : host.position(); }

}  // namespace

void set_host_language(const HostLanguage& language) { host = language; }

ErrorsStayInside::ErrorsStayInside()
    : position_before_(std::exchange(position_of_call, position())) {
  ++calls_inside;
}
ErrorsStayInside::~ErrorsStayInside() {
  --calls_inside;
  position_of_call = position_before_;
}

bool is_host_inside() { return calls_inside > 0 && position() != position_of_call; }

void translate_leaving_error() {
  if (host.translate_error == nullptr) return;
  if (calls_inside == 0 || is_host_inside()) host.translate_error();
}

bool is_translated_budget_error() {
  return host.is_budget_error != nullptr && host.is_budget_error();
}

}  // namespace reprise::libtorch
