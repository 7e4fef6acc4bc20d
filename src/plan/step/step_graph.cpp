// From a trace, whose indexes hold constants as well, to operators that ran.
#include "plan/step/step_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace reprise::plan {

namespace {

constexpr StepGraph::Index kAbsent = std::numeric_limits<StepGraph::Index>::max();

}  // namespace

StepGraph::StepGraph(const Trace& trace, double store_bytes_per_second,
                     std::vector<std::int64_t> beside)
    : fixed_(std::move(beside)) {
  const auto is_constant = [&](Index value) {
    return trace.operators[trace.values[value].producer].is_constant;
  };
  std::vector<Index> tensor_of(trace.tensors.size(), kAbsent);
  std::vector<Index> storage_of(trace.values.size(), kAbsent);
  std::int64_t constants = 0;
  Lists on;  // the storage of each tensor
  for (Index o = 0; o < trace.operators.size(); ++o) {
    const Trace::Operator& op = trace.operators[o];
    if (op.is_constant) {
      constants += op.bytes;
      continue;
    }
    const auto index = static_cast<Index>(nanoseconds_.size());
    nanoseconds_.push_back(op.nanoseconds);
    all_nanoseconds_ += op.nanoseconds;
    const std::size_t first = reads_.items.size();
    for (Index a = op.arguments.begin; a < op.arguments.end; ++a) {
      const Index tensor = tensor_of[trace.arguments[a]];
      if (tensor == kAbsent) continue;
      const auto begin = reads_.items.begin() + static_cast<std::ptrdiff_t>(first);
      if (std::find(begin, reads_.items.end(), tensor) != reads_.items.end()) continue;
      reads_.items.push_back(tensor);
    }
    reads_.close();
    for (Index t = op.results.begin; t < op.results.end; ++t) {
      const Trace::Tensor& made = trace.tensors[t];
      if (is_constant(made.value)) continue;
      if (storage_of[made.value] == kAbsent) {
        storage_of[made.value] = static_cast<Index>(storages_.size());
        storages_.push_back({trace.values[made.value].bytes, index});
        makes_.items.push_back(storage_of[made.value]);
      }
      tensor_of[t] = static_cast<Index>(tensors_.size());
      results_.items.push_back(tensor_of[t]);
      tensors_.push_back({index, storage_of[made.value], made.is_view});
      on.items.push_back(storage_of[made.value]);
      on.close();
    }
    makes_.close();
    results_.close();
  }
  fixed_.resize(std::size_t{operators()} + 1, 0);
  for (std::int64_t& bytes : fixed_) bytes += constants;
  readers_ = inverse(reads_, tensors_.size());
  tensors_on_ = inverse(on, storages_.size());
  is_kept_.assign(tensors_.size(), false);
  for (const Trace::Event& event : trace.events) {
    if (event.what != Trace::Do::kKeep || tensor_of[event.subject] == kAbsent) continue;
    const Index tensor = tensor_of[event.subject];
    if (!is_kept_[tensor]) kept_.push_back(tensor);
    is_kept_[tensor] = true;
  }
  if (store_bytes_per_second > 0) price_transfers(store_bytes_per_second);
}

void StepGraph::price_transfers(double bytes_per_second) {
  // Some 18 minutes: longer transfers are never worth it, and sums of these do not overflow.
  constexpr double kMost = 0x1p40;
  for (Index op = 0; op < operators(); ++op) {
    double bytes = 0;
    for (const Index storage : makes(op)) bytes += static_cast<double>(storages_[storage].bytes);
    const auto all = results(op);
    const bool is_own = std::all_of(all.begin(), all.end(), [&](Index tensor) {
      return storages_[tensors_[tensor].storage].op == op;
    });
    const double nanoseconds = 1e9 * bytes / bytes_per_second;
    const bool can_be = is_own && bytes > 0 && nanoseconds <= kMost;
    transfer_nanoseconds_.push_back(can_be ? std::llround(nanoseconds) : -1);
  }
}

// Which lists each number is in.
StepGraph::Lists StepGraph::inverse(const Lists& lists, std::size_t count) {
  std::vector<std::vector<Index>> in(count);
  for (Index at = 0; at + 1 < lists.begin.size(); ++at) {
    for (const Index item : lists.of(at)) in[item].push_back(at);
  }
  Lists result;
  for (const std::vector<Index>& each : in) {
    result.items.insert(result.items.end(), each.begin(), each.end());
    result.close();
  }
  return result;
}

}  // namespace reprise::plan
