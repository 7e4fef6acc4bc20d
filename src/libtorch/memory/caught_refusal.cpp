#include "libtorch/memory/caught_refusal.h"

#include <ATen/Context.h>

#include <exception>

namespace reprise::libtorch {
namespace {

thread_local std::uint64_t refusals = 0;
thread_local std::exception_ptr last;

}  // namespace

void note_refusal() {
  ++refusals;
  last = std::current_exception();
}

KernelMayCatch::KernelMayCatch()
    : refusals_before_(refusals), uses_onednn_(at::globalContext().userEnabledMkldnn()) {}

KernelMayCatch::~KernelMayCatch() {
  if (!has_caught()) return;
  last = nullptr;
  if (uses_onednn_) at::globalContext().setUserEnabledMkldnn(true);
}

bool KernelMayCatch::has_caught() const { return refusals != refusals_before_; }

void KernelMayCatch::rethrow() const {
  if (has_caught()) std::rethrow_exception(last);
}

}  // namespace reprise::libtorch
