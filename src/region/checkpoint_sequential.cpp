// Segments of a chain, and schedules (reprise/sequential.h).

#include "reprise/sequential.h"

#include <c10/util/SmallVector.h>
#include <reprise/offload.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "plan/chain/nested_schedule.h"

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

using plan::Nest;
using plan::Nests;

// What all regions of one call share.
struct Scheduled {
  std::vector<Segment> stages;
  Nests nests;
  CheckpointOptions options;
  std::shared_ptr<Store> store;
};

at::Tensor run(const std::shared_ptr<const Scheduled>& scheduled, const Nests& nests,
               at::Tensor tensor, bool keeps);

// Stages that are run again as a whole.
class Again {
 public:
  Again(std::shared_ptr<const Scheduled> scheduled, const Nests& nests)
      : scheduled_(std::move(scheduled)), nests_(&nests) {}

  // The first time nothing is kept, and so nothing goes to a store.
  at::Tensor operator()(at::Tensor tensor) const {
    const bool keeps = has_run_->exchange(true);
    return run(scheduled_, *nests_, std::move(tensor), keeps);
  }

 private:
  std::shared_ptr<const Scheduled> scheduled_;
  const Nests* nests_;  // of *scheduled_
  // Of all copies; graphs that are kept may run backward on several threads.
  std::shared_ptr<std::atomic<bool>> has_run_ = std::make_shared<std::atomic<bool>>(false);
};

at::Tensor run(const std::shared_ptr<const Scheduled>& scheduled, const Nests& nests,
               at::Tensor tensor, bool keeps) {
  for (const Nest& nest : nests) {
    if (!nest.again.empty()) {
      tensor = checkpoint(scheduled->options, Again(scheduled, nest.again), std::move(tensor));
      continue;
    }
    std::optional<OffloadScope> scope;
    if (keeps && nest.is_offloaded) scope.emplace(scheduled->store, Bytes(0));
    tensor = scheduled->stages[static_cast<std::size_t>(nest.stage)](std::move(tensor));
  }
  return tensor;
}

[[noreturn]] void refuse_empty() {
  throw UsageError("checkpoint_sequential(): the list of functions is empty; give at least one");
}

// The functions of each stage.
std::vector<Segment> stages_of(const std::vector<TensorFunction>& functions,
                               const Schedule& schedule) {
  std::vector<std::int64_t> layers = schedule.layers;
  if (layers.empty()) layers.assign(functions.size(), 1);
  std::span<const TensorFunction> left(functions);
  std::vector<Segment> stages;
  for (const std::int64_t each : layers) {
    // Their sum may be more than any number.
    if (each < 1 || each > std::ssize(left)) {
      throw PlanError("checkpoint_sequential(): stage " + std::to_string(stages.size()) +
                      " of the schedule is of " + std::to_string(each) + " layers, but of " +
                      std::to_string(functions.size()) + " functions " +
                      std::to_string(left.size()) + " are left; plan for a chain of as many");
    }
    const auto size = static_cast<std::size_t>(each);
    stages.emplace_back(left.first(size));
    left = left.subspan(size);
  }
  if (!left.empty()) {
    throw PlanError("checkpoint_sequential(): the schedule is of " +
                    std::to_string(functions.size() - left.size()) + " layers, but there are " +
                    std::to_string(functions.size()) + " functions; plan for a chain of as many");
  }
  return stages;
}

bool offloads(const Nests& nests) {
  return std::any_of(nests.begin(), nests.end(),
                     [](const Nest& nest) { return nest.is_offloaded || offloads(nest.again); });
}

}  // namespace

void detail::check_segments(std::size_t functions, std::int64_t segments) {
  if (functions == 0) refuse_empty();
  if (segments >= 1 && segments <= static_cast<std::int64_t>(functions)) return;
  throw UsageError("checkpoint_sequential(): segments is " + std::to_string(segments) +
                   ", but must be between 1 and the number of functions, " +
                   std::to_string(functions));
}

at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 std::int64_t segments, at::Tensor input,
                                 const CheckpointOptions& options) {
  detail::check_options(options);
  detail::check_segments(functions.size(), segments);
  const std::size_t size = functions.size() / static_cast<std::size_t>(segments);
  std::span<const TensorFunction> left(functions);
  for (std::int64_t segment = 0; segment + 1 < segments; ++segment, left = left.subspan(size)) {
    input = checkpoint(options, Segment(left.first(size)), std::move(input));
  }
  for (const TensorFunction& function : left) input = function(input);
  return input;
}

at::Tensor checkpoint_sequential(const std::vector<TensorFunction>& functions,
                                 const Schedule& schedule, at::Tensor input,
                                 const CheckpointOptions& options, std::shared_ptr<Store> store) {
  detail::check_options(options);
  if (functions.empty()) refuse_empty();
  auto scheduled = std::make_shared<Scheduled>();
  scheduled->stages = stages_of(functions, schedule);
  scheduled->nests = plan::nests_of(schedule, std::ssize(scheduled->stages));
  if (offloads(scheduled->nests) && store == nullptr) {
    throw UsageError(
        "checkpoint_sequential(): the schedule offloads, but there is no store; give one, such as "
        "disk_store(), or plan without");
  }
  scheduled->options = options;
  scheduled->store = std::move(store);
  return run(scheduled, scheduled->nests, std::move(input), /*keeps=*/true);
}

}  // namespace reprise
