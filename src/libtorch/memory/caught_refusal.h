// Kernels may catch the error of an allocation that is refused, and compute in another way. LibTorch's
// batched products by oneDNN do: they switch oneDNN off for the whole process, and take a kernel whose
// bits differ. Such a call is to fail, and to leave the setting as it was.
#pragma once

#include <cstdint>

namespace reprise::libtorch {

// In a catch block: an allocation of this thread was refused, and whoever asked for it gets the error.
// `may_cope`: it may be code of the host language, which knows what to do instead.
void note_refusal(bool may_cope);

// While it lives, a kernel runs on this thread, or a compiled graph of kernels.
class KernelMayCatch {
 public:
  KernelMayCatch();
  ~KernelMayCatch();
  KernelMayCatch(const KernelMayCatch&) = delete;
  KernelMayCatch& operator=(const KernelMayCatch&) = delete;

  // After it has returned: throws the last refusal that it has caught. One with which code of the host
  // language has coped is none, unless oneDNN has been switched off for it.
  void rethrow() const;

 private:
  bool has_lost_onednn() const;

  const std::uint64_t refusals_before_, final_before_;
  const bool uses_onednn_;
};

}  // namespace reprise::libtorch
