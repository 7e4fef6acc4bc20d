#include "estimate/step_checks.h"

#include <reprise/error.h>
#include <torch/nn/module.h>

#include "estimate/machine_rates.h"
#include "libtorch/meta/on_meta.h"

namespace reprise::estimate {

namespace {

// As many as state of 2^60 bytes can be divided by with no sum of 64 bits too small.
constexpr std::int64_t kMostShards = std::int64_t{1} << 20;

// LibTorch's names of device types throw for numbers that are none.
std::string name_of_device(c10::DeviceType device) {
  if (c10::isValidDeviceType(device)) return c10::DeviceTypeName(device, /*lower_case=*/true);
  return "of number " + std::to_string(static_cast<int>(device)) + ", which is none of LibTorch's";
}

// Each tensor once, however many names it has.
std::vector<at::Tensor> distinct(std::vector<at::Tensor> tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(tensors, [&](const at::Tensor& each) {
    return !each.defined() || !seen.insert(each.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

}  // namespace

void check_called(const std::function<at::Tensor()>& loss, const EstimateOptions& options) {
  check_not_on_meta("estimate_step()");
  if (!loss) {
    throw UsageError(
        "estimate_step(): the function is empty; give one that runs forward and returns the loss");
  }
  if (options.device != c10::kCPU && options.device != c10::kCUDA) {
    throw UsageError("estimate_step(): the device is " + name_of_device(options.device) +
                     "; it must be cpu or cuda, whose operators' choices are known");
  }
  if (options.shards < 1 || options.shards > kMostShards) {
    throw UsageError("estimate_step(): shards is " + std::to_string(options.shards) +
                     "; it must be from 1, the device alone, to " + std::to_string(kMostShards));
  }
  check_rates(options.machine, "estimate_step()");
}

void check_loss(const at::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad() && !loss.is_complex()) return;
  throw UsageError(
      "estimate_step(): the function must give one real number that depends on parameters, where "
      "backward can start; it gave " +
      (!loss.defined()
           ? std::string("nothing")
           : std::to_string(loss.numel()) + (loss.is_complex() ? " complex numbers" : " numbers") +
                 (loss.requires_grad() ? "" : " without a gradient")));
}

void check_not_on_meta(const char* what) {
  if (!libtorch::is_on_meta()) return;
  throw UsageError(std::string(what) +
                   ": it was called inside of an estimate's function or of MetaTensorsScope, where "
                   "tensors have no memory already; call it outside, before or after");
}

void refuse_trained_elsewhere(const std::string& sizes) {
  throw UsageError("estimate_step(): a tensor outside of the module, of sizes " + sizes +
                   ", requires a gradient; register it in the module, or detach() it for the "
                   "estimate");
}

void refuse_made_before(const std::string& sizes) {
  throw UsageError(
      "estimate_step(): backward would go on into a graph from before the estimate, "
      "by a tensor of sizes " +
      sizes +
      " that was made there; make it inside of the function, or detach() it for the "
      "estimate");
}

Registered::Registered(torch::nn::Module& module)
    : module_(module),
      parameters_(distinct(module.parameters())),
      buffers_(distinct(module.buffers())) {
  for (const at::Tensor& each : all()) {
    seen_.insert(each.unsafeGetTensorImpl());
    has_memory_ |= !each.is_meta();
  }
}

std::vector<at::Tensor> Registered::all() const {
  std::vector<at::Tensor> tensors = parameters_;
  tensors.insert(tensors.end(), buffers_.begin(), buffers_.end());
  return tensors;
}

std::string Registered::without_memory() const {
  std::string names;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      const at::Tensor& tensor = item.value();
      if (!has_memory_ || !tensor.defined() || !tensor.is_meta()) continue;
      if (seen_.contains(tensor.unsafeGetTensorImpl())) continue;
      names += (names.empty() ? "\"" : ", \"") + item.key() + "\"";
    }
  };
  add(module_.named_parameters());
  add(module_.named_buffers());
  return names;
}

void Registered::check(const std::string& failure) const {
  const std::string names = without_memory();
  if (names.empty()) return;
  throw UsageError("estimate_step(): the step registered parameters or buffers of the module, " +
                   names + ", which have no memory now; build the module anew, and have them " +
                   "registered before the estimate: in a constructor, or by a step that is run" +
                   (failure.empty() ? "" : " (and the step failed: " + failure + ")"));
}

}  // namespace reprise::estimate
