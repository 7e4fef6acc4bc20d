// Lets a training step run on meta tensors, which have sizes but no memory. Plain LibTorch has no
// Meta kernel for about a third of its operators (Python brings those as decompositions), and some
// operators choose among kernels by device, so that on meta they would save other tensors than on
// the device that is meant. The shape functions here make what the real kernels make: results of
// the same sizes, strides, dtype and memory.
//
// Known to differ from the device that is meant:
// - recurrent layers are one operator of cuDNN's on CUDA, and LSTMs in 16 bits are oneDNN's on the
//   CPU; on meta they are made of LibTorch's own cells;
// - backward of prod, cumprod and a few more takes formulas on meta that keep more;
// - backward of group_norm on channels last makes contiguous copies on meta, as on CUDA;
// - cuDNN's batch normalization may save a reserve beside the statistics.
#pragma once

#include <c10/core/DeviceType.h>

#include <functional>
#include <string>
#include <vector>

namespace reprise::libtorch {

// At the first call of the process, registers a Meta kernel for each operator of the table for
// which nobody has registered one. LibTorch reads its tables without a lock, so no other thread may
// be running operators meanwhile; later calls do nothing. Never undone.
void ensure_shape_functions();

// "aten::native_layer_norm", ...: all of the table, registered or not needed; sorted. An operator
// that is made of others and chooses among them by device ("aten::dropout") is listed too.
std::vector<std::string> operators_with_shape_functions();

// While it lives, shape functions that run on this thread make what the kernels of that type of
// device would save and allocate. Scopes nest; without one: the CPU. Throws UsageError for a type
// other than CPU and CUDA.
class ShapesOfDevice {
 public:
  explicit ShapesOfDevice(c10::DeviceType type);
  ~ShapesOfDevice();
  ShapesOfDevice(const ShapesOfDevice&) = delete;
  ShapesOfDevice& operator=(const ShapesOfDevice&) = delete;

 private:
  c10::DeviceType outer_;
};

// The type of the innermost scope of this thread.
c10::DeviceType shapes_device();

// Calls `step`, with the shape functions registered. Throws UsageError where the step uses an
// operator without a Meta kernel, naming it and how to add one, and where it reads values, which
// meta tensors do not have. Other errors pass through.
void run_on_meta(const std::function<void()>& step);

}  // namespace reprise::libtorch
