#include "libtorch/base/leaving_errors.h"

namespace reprise::libtorch {
namespace {

thread_local int calls_inside = 0;
ErrorTranslator translator_in_force = nullptr;

}  // namespace

void set_error_translator(ErrorTranslator translator) { translator_in_force = translator; }

ErrorsStayInside::ErrorsStayInside() { ++calls_inside; }
ErrorsStayInside::~ErrorsStayInside() { --calls_inside; }

void translate_leaving_error() {
  if (calls_inside == 0 && translator_in_force != nullptr) translator_in_force();
}

}  // namespace reprise::libtorch
