#include "libtorch/memory/caught_refusal.h"

#include <ATen/Context.h>

#include <exception>

namespace reprise::libtorch {
namespace {

struct Refusals {
  std::uint64_t all = 0;
  std::uint64_t final = 0;  // those with which nobody copes
  std::exception_ptr last;
  int kernels = 0;  // that run now, one within the other
};
thread_local Refusals refusals;

}  // namespace

void note_refusal(bool may_cope) {
  if (refusals.kernels == 0) return;
  ++refusals.all;
  if (!may_cope) ++refusals.final;
  refusals.last = std::current_exception();
}

KernelMayCatch::KernelMayCatch()
    : refusals_before_(refusals.all),
      final_before_(refusals.final),
      uses_onednn_(at::globalContext().userEnabledMkldnn()) {
  ++refusals.kernels;
}

KernelMayCatch::~KernelMayCatch() {
  if (has_lost_onednn()) at::globalContext().setUserEnabledMkldnn(true);
  if (--refusals.kernels == 0) refusals.last = nullptr;
}

bool KernelMayCatch::has_lost_onednn() const {
  return refusals.all != refusals_before_ && uses_onednn_ &&
         !at::globalContext().userEnabledMkldnn();
}

void KernelMayCatch::rethrow() const {
  if (refusals.final != final_before_ || has_lost_onednn()) std::rethrow_exception(refusals.last);
}

}  // namespace reprise::libtorch
