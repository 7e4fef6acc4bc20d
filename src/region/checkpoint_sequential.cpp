// Segments of a chain (reprise/checkpoint_sequential.h).

#include "reprise/checkpoint_sequential.h"

#include <c10/util/SmallVector.h>

#include <span>
#include <string>
#include <utility>

namespace reprise {
namespace {

// Consecutive functions; the copies are cheap handles, kept for as long as the region's graph.
class Segment {
 public:
  explicit Segment(std::span<const TensorFunction> functions)
      : functions_(functions.begin(), functions.end()) {}

  at::Tensor operator()(at::Tensor tensor) const {
    for (const TensorFunction& function : functions_) tensor = function(tensor);
    return tensor;
  }

 private:
  // Each segment has its own: one large block for all would also make malloc tidy up at every call.
  c10::SmallVector<TensorFunction, 1> functions_;
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
  const auto size = static_cast<std::size_t>(count / segments);
  std::span<const TensorFunction> left(functions);
  for (std::int64_t segment = 0; segment + 1 < segments; ++segment, left = left.subspan(size)) {
    input = checkpoint(options, Segment(left.first(size)), std::move(input));
  }
  for (const TensorFunction& function : left) input = function(input);
  return input;
}

}  // namespace reprise
