// Kernels may catch the error of an allocation that is refused, and compute in another way. LibTorch's
// batched products by oneDNN do: they switch oneDNN off for the whole process, and take a kernel whose
// bits differ. Such a call is to fail, and to leave the setting as it was.
#pragma once

#include <cstdint>

namespace reprise::libtorch {

// In a catch block: an allocation of this thread was refused, and whoever asked for it gets the error.
void note_refusal();

// While it lives, a kernel runs on this thread.
class KernelMayCatch {
 public:
  KernelMayCatch();
  ~KernelMayCatch();
  KernelMayCatch(const KernelMayCatch&) = delete;
  KernelMayCatch& operator=(const KernelMayCatch&) = delete;

  // After it has returned: throws the last refusal that it has caught.
  void rethrow() const;

 private:
  bool has_caught() const;

  const std::uint64_t refusals_before_;
  const bool uses_onednn_;
};

}  // namespace reprise::libtorch
