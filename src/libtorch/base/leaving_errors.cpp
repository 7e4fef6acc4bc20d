#include "libtorch/base/leaving_errors.h"

#include <utility>

namespace reprise::libtorch {
namespace {

thread_local int calls_inside = 0;
// The innermost of these calls came from there.
thread_local const void* position_of_call = nullptr;
ErrorTranslator translator_in_force = nullptr;
HostPosition position_in_force = nullptr;

const void* position() { return position_in_force == nullptr ? nullptr : position_in_force(); }

}  // namespace

void set_error_translator(ErrorTranslator translator, HostPosition position) {
  translator_in_force = translator;
  position_in_force = position;
}

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
  if (translator_in_force == nullptr) return;
  if (calls_inside == 0 || is_host_inside()) translator_in_force();
}

}  // namespace reprise::libtorch
