#include "pipeline/micro_batches.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <reprise/error.h>

#include <algorithm>
#include <string>

namespace reprise::pipeline {

std::int64_t samples_of(const Tensors& batch, const char* what, std::int64_t samples) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto name = [&] { return std::string(what) + " " + std::to_string(i); };
    if (!batch[i].defined()) {
      throw UsageError("Pipeline: " + name() +
                       " is undefined, and cannot be cut into micro-batches");
    }
    if (batch[i].dim() == 0) {
      throw UsageError("Pipeline: " + name() +
                       " has no dimension; its first one must be that of the samples, along which "
                       "it is cut into micro-batches");
    }
    if (samples < 0) samples = batch[i].size(0);
    if (batch[i].size(0) != samples) {
      throw UsageError("Pipeline: " + name() + " has " + std::to_string(batch[i].size(0)) +
                       " samples (the size of its first dimension), and the first input has " +
                       std::to_string(samples) + "; all must have the same number");
    }
  }
  if (samples < 1) {
    throw UsageError(
        "Pipeline: a mini-batch of no samples cannot be cut into micro-batches; give "
        "at least one tensor with at least one sample");
  }
  return samples;
}

std::vector<std::int64_t> sizes_of(std::int64_t samples, std::int64_t chunks) {
  const std::int64_t each = (samples + chunks - 1) / chunks;
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = samples; left > 0; left -= each) sizes.push_back(std::min(left, each));
  return sizes;
}

std::vector<Tensors> scatter(const Tensors& batch, const std::vector<std::int64_t>& sizes) {
  std::vector<Tensors> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    Tensors& part = parts.emplace_back();
    for (const at::Tensor& tensor : batch) {
      part.push_back(tensor.defined() ? tensor.narrow(0, begin, size) : at::Tensor());
    }
    begin += size;
  }
  return parts;
}

Tensors gather(const std::vector<Tensors>& batches, const std::vector<std::int64_t>& sizes) {
  if (batches.size() == 1) return batches.front();
  Tensors whole;
  for (std::size_t i = 0; i < batches.front().size(); ++i) {
    Tensors parts;
    for (const Tensors& batch : batches) parts.push_back(batch[i]);
    const auto defined = [](const at::Tensor& part) { return part.defined(); };
    const auto some = std::find_if(parts.begin(), parts.end(), defined);
    if (some == parts.end()) {
      whole.emplace_back();
      continue;
    }
    const at::Tensor& like = *some;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (parts[k].defined()) continue;
      std::vector<std::int64_t> shape = like.sizes().vec();
      shape[0] = sizes[k];
      parts[k] = at::zeros(shape, like.options());
    }
    whole.push_back(at::cat(parts));
  }
  return whole;
}

}  // namespace reprise::pipeline
