// What LibTorch says of calls that meta tensors cannot answer, in words that help.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <string_view>

namespace reprise::libtorch {

// Throws UsageError where `error` says that an operator has no kernel on meta tensors, naming it
// and how to add one, or that somebody reads values, which meta tensors do not have. Returns for
// any other.
void explain_on_meta(const c10::Error& error);

}  // namespace reprise::libtorch
