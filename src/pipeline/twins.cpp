#include "pipeline/twins.h"

#include <ATen/MemoryOverlap.h>
#include <reprise/error.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "libtorch/autograd/saved_tensor.h"

namespace reprise::pipeline {
namespace {

std::uint64_t next_group() {
  static std::atomic<std::uint64_t> count{0};
  return count++;
}

// Whether steps along the dimensions from `next` on, each forth or back, can lead `distance` away.
// Exact where each stride is longer than all that the smaller ones reach, as in views of a dense
// tensor.
bool can_reach(const at::Tensor& tensor, const std::vector<std::size_t>& by_stride,
               std::size_t next, std::int64_t distance) {
  if (next == by_stride.size()) return distance == 0;
  const auto dimension = static_cast<std::int64_t>(by_stride[next]);
  const std::int64_t stride = tensor.stride(dimension), most = tensor.size(dimension) - 1;
  if (stride == 0) return can_reach(tensor, by_stride, next + 1, distance);
  const std::int64_t steps = distance / stride;
  for (const std::int64_t each : {steps, steps + (distance < 0 ? -1 : 1)}) {
    if (std::abs(each) > most) continue;
    if (can_reach(tensor, by_stride, next + 1, distance - each * stride)) return true;
  }
  return false;
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? libtorch::version_of(tensor) : 0;
}

}  // namespace

bool may_overlap(const at::Tensor& a, const at::Tensor& b) {
  const bool have_memory = a.defined() && b.defined() && a.has_storage() && b.has_storage();
  if (!have_memory || !a.storage().is_alias_of(b.storage())) return false;
  if (a.numel() == 0 || b.numel() == 0) return false;
  if (at::get_overlap_status(a, b) == at::MemOverlapStatus::No) return false;
  // Parts of one tensor, as chunk() makes them.
  if (a.sizes() != b.sizes() || a.strides() != b.strides() || a.dtype() != b.dtype()) return true;
  std::vector<std::size_t> by_stride(static_cast<std::size_t>(a.dim()));
  std::iota(by_stride.begin(), by_stride.end(), std::size_t{0});
  std::ranges::sort(by_stride, std::greater<>(), [&](std::size_t dimension) {
    return a.stride(static_cast<std::int64_t>(dimension));
  });
  return can_reach(a, by_stride, 0, a.storage_offset() - b.storage_offset());
}

std::vector<Twins> twins_of(const Tensors& tensors, const std::vector<std::int64_t>& to) {
  std::vector<Twins> twins(tensors.size());
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (!may_overlap(tensors[i], tensors[k])) continue;
      const std::uint64_t group = next_group();
      twins[i].push_back({group, to[k]});
      twins[k].push_back({group, to[i]});
    }
  }
  return twins;
}

TwinWatch::TwinWatch(std::int64_t stage, const Tensors& inputs, std::vector<Twins> twins)
    : stage_(stage),
      inputs_([&] {
        Tensors watched(inputs.size());
        for (std::size_t i = 0; i < twins.size(); ++i) {
          if (!twins[i].empty()) watched[i] = libtorch::alias_without_history(inputs[i]);
        }
        return watched;
      }()),
      twins_(std::move(twins)) {
  for (const at::Tensor& input : inputs_) versions_.push_back(version_of(input));
}

// Here, or at a later stage.
bool TwinWatch::is_elsewhere(std::size_t input, const Twin& twin) const {
  if (twin.until >= stage_) return true;
  for (std::size_t i = 0; i < twins_.size(); ++i) {
    const auto is_same = [&](const Twin& other) { return other.group == twin.group; };
    if (i != input && std::any_of(twins_[i].begin(), twins_[i].end(), is_same)) return true;
  }
  return false;
}

void TwinWatch::check() const {
  for (std::size_t i = 0; i < twins_.size(); ++i) {
    if (version_of(inputs_[i]) == versions_[i]) continue;
    for (const Twin& twin : twins_[i]) {
      if (!is_elsewhere(i, twin)) continue;
      throw UsageError(
          "Pipeline: a layer of stage " + std::to_string(stage_) + " changes input " +
          std::to_string(i) +
          " of the stage in place, and that tensor is also stashed, or was given or returned "
          "twice: the other use, in stage " +
          std::to_string(std::max(twin.until, stage_)) +
          ", would not see the change. Let the layer compute out of place, or stash, give or "
          "return a clone");
    }
  }
}

std::vector<Twins> TwinWatch::of_outputs(const Tensors& outputs,
                                         const std::vector<std::int64_t>& to) const {
  std::vector<Twins> twins = twins_of(outputs, to);
  // By group, the outputs that lie on an input of it.
  std::map<std::uint64_t, std::vector<std::size_t>> members;
  std::map<std::uint64_t, std::int64_t> until;
  for (std::size_t i = 0; i < twins_.size(); ++i) {
    for (const Twin& twin : twins_[i]) {
      until[twin.group] = std::max(until[twin.group], twin.until);
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        if (may_overlap(inputs_[i], outputs[k])) members[twin.group].push_back(k);
      }
    }
  }
  for (const auto& [group, of_group] : members) {
    for (const std::size_t k : of_group) {
      std::int64_t last = until[group] > stage_ ? until[group] : -1;
      for (const std::size_t other : of_group) {
        if (other != k) last = std::max(last, to[other]);
      }
      if (last > stage_) twins[k].push_back({group, last});
    }
  }
  return twins;
}

}  // namespace reprise::pipeline
