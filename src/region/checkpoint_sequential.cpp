// Segments of a chain (reprise/checkpoint_sequential.h).

#include "reprise/checkpoint_sequential.h"

#include <string>

namespace reprise {
namespace {

// Consecutive functions; the copies are cheap handles, kept for as long as the region's graph.
struct Segment {
  std::shared_ptr<const std::vector<TensorFunction>> functions;
  std::size_t begin;
  std::size_t end;

  at::Tensor operator()(at::Tensor tensor) const {
    for (std::size_t i = begin; i < end; ++i) tensor = (*functions)[i](tensor);
    return tensor;
  }
};

}  // namespace

at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 std::int64_t segments, at::Tensor input,
                                 const CheckpointOptions& options) {
  detail::check_options(options);
  const auto count = static_cast<std::int64_t>(functions.size());
  if (count == 0) {
    throw UsageError("checkpoint_sequential(): the list of functions is empty; give at least one");
  }
  if (segments < 1 || segments > count) {
    throw UsageError("checkpoint_sequential(): segments is " + std::to_string(segments) +
                     ", but must be between 1 and the number of functions, " +
                     std::to_string(count));
  }
  const auto shared = std::make_shared<const std::vector<TensorFunction>>(functions);
  const auto size = static_cast<std::size_t>(count / segments);
  std::size_t begin = 0;
  for (std::int64_t segment = 0; segment + 1 < segments; ++segment, begin += size) {
    input = checkpoint(options, Segment{shared, begin, begin + size}, std::move(input));
  }
  return Segment{shared, begin, functions.size()}(std::move(input));
}

}  // namespace reprise
