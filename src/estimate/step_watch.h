// Writes the timeline of a step that runs on the meta device: who makes, reads and writes which
// storage, and what each call would have cost.
#pragma once

#include <reprise/estimate.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "estimate/timeline.h"
#include "libtorch/autograd/between_nodes.h"
#include "libtorch/meta/on_meta.h"

namespace reprise::estimate {

class StepWatch final : public libtorch::OnMeta {
 public:
  StepWatch(const EstimateOptions& options, std::shared_ptr<Timeline> timeline)
      : options_(options), timeline_(std::move(timeline)) {}

  // Memory that is there before the step.
  void know(const at::Tensor& tensor, Timeline::Role role);
  // Which of what was made are gradients of these; of sparse ones, their parts.
  void note_gradients(const std::vector<at::Tensor>& parameters);
  // From here on calls belong to backward.
  void begin_backward();

 protected:
  bool sums_gradients() const override { return libtorch::is_between_nodes(); }
  void stands_in(const c10::Storage& meta) override;
  void before(libtorch::OperatorCall& call) override;
  void after(libtorch::OperatorCall& call, at::ArrayRef<c10::IValue> arguments) override;

 private:
  void know_locked(const at::Tensor& tensor, Timeline::Role role);
  // -1: nobody has told of it, or it has no memory of its own.
  Timeline::Number number_of(const at::Tensor& tensor) const;
  Timeline::Number add(const at::Tensor& tensor, const Timeline::Memory& memory);
  std::int32_t kind_of(const std::string& operator_name);
  void note_writes(const libtorch::OperatorCall& call, at::ArrayRef<c10::IValue> arguments,
                   Timeline::Call& noted);
  void note_sum(const libtorch::OperatorCall& call, Timeline::Call& noted);

  const EstimateOptions options_;
  std::shared_ptr<Timeline> timeline_;
  bool is_backward_ = false;
};

}  // namespace reprise::estimate
