#include "estimate/step_watch.h"

#include <ATen/autocast_mode.h>
#include <c10/util/StringUtil.h>
#include <reprise/checkpoint.h>
#include <reprise/error.h>
#include <reprise/selective.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "estimate/operator_cost.h"
#include "estimate/workspace.h"
#include "libtorch/operators/operator_facts.h"

namespace reprise::estimate {

namespace {

struct Word {
  std::string_view name, word;
};

// Where the operator's own name would not be recognised.
constexpr Word kWords[] = {
    {"addmm", "linear"},
    {"mm", "linear"},
    {"bmm", "matmul"},
    {"baddbmm", "matmul"},
    {"native_layer_norm", "layer_norm"},
    {"native_group_norm", "group_norm"},
    {"native_batch_norm", "batch_norm"},
    {"_native_batch_norm_legit", "batch_norm"},
    {"native_dropout", "dropout"},
    {"bernoulli_", "dropout"},
    {"_softmax", "softmax"},
    {"_safe_softmax", "softmax"},
    {"_log_softmax", "cross_entropy"},
    {"nll_loss_forward", "cross_entropy"},
    {"nll_loss2d_forward", "cross_entropy"},
    {"_scaled_dot_product_flash_attention", "attention"},
    {"_scaled_dot_product_flash_attention_for_cpu", "attention"},
    {"_scaled_dot_product_efficient_attention", "attention"},
    {"_scaled_dot_product_cudnn_attention", "attention"},
    {"clone", "copy"},
    {"_to_copy", "copy"},
    {"_unsafe_view", "copy"},
};

std::string word_for(const std::string& operator_name) {
  const std::size_t colons = operator_name.rfind("::");
  const std::string_view name =
      std::string_view(operator_name).substr(colons == std::string::npos ? 0 : colons + 2);
  const auto* const found = std::ranges::find(kWords, name, &Word::name);
  return std::string(found != std::end(kWords) ? found->word : name);
}

// "blocks.3.attention" and "block17": the same layer at another depth is of the same kind.
std::string without_numbers(const std::string& path) {
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(path[i])) != 0;
    if (!is_digit) text += path[i];
  }
  std::string kept;
  for (const char each : text) {
    const bool is_second_dot = each == '.' && (kept.empty() || kept.back() == '.');
    if (!is_second_dot) kept += each;
  }
  while (kept.ends_with('.')) kept.pop_back();
  return kept;
}

}  // namespace

Timeline::Number StepWatch::number_of(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return -1;
  return libtorch::watched_number(*tensor.storage().unsafeGetStorageImpl(), *timeline_);
}

Timeline::Number StepWatch::add(const at::Tensor& tensor, const Timeline::Memory& memory) {
  return timeline_->add(*tensor.storage().unsafeGetStorageImpl(), memory, timeline_);
}

std::int32_t StepWatch::kind_of(const std::string& operator_name) {
  const std::string path = without_numbers(current_path()), word = word_for(operator_name);
  return timeline_->kind(path.empty() ? word : path + "/" + word);
}

void StepWatch::know(const at::Tensor& tensor, Timeline::Role role) {
  const std::lock_guard<std::mutex> lock(mutex());
  know_locked(tensor, role);
}

void StepWatch::know_locked(const at::Tensor& tensor, Timeline::Role role) {
  if (!tensor.defined() || !tensor.has_storage() || number_of(tensor) >= 0) return;
  add(tensor, {.bytes = static_cast<std::int64_t>(tensor.storage().nbytes()), .role = role});
}

void StepWatch::stands_in(const c10::Storage& meta) {
  timeline_->add(
      *meta.unsafeGetStorageImpl(),
      {.bytes = static_cast<std::int64_t>(meta.nbytes()), .role = Timeline::Role::kInput},
      timeline_);
}

void StepWatch::begin_backward() {
  const std::lock_guard<std::mutex> lock(mutex());
  is_backward_ = true;
  timeline_->end_forward();
}

void StepWatch::note_gradients(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard<std::mutex> lock(mutex());
  // Where rows are looked up, which they are may be the step's input.
  const auto note = [this](const at::Tensor& gradient) {
    const Timeline::Number number = number_of(gradient);
    if (number < 0) return;
    Timeline::Role& role = timeline_->memory(number).role;
    if (role == Timeline::Role::kMade) role = Timeline::Role::kGradient;
  };
  for (const at::Tensor& each : parameters) {
    const at::Tensor& gradient = each.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      note(gradient._indices());
      note(gradient._values());
    } else {
      note(gradient);
    }
  }
}

void StepWatch::before(libtorch::OperatorCall& call) {
  if (at::autocast::is_autocast_enabled(options_.device)) {
    throw UsageError(
        c10::str("estimate_step(): the step runs under autocast to ",
                 at::autocast::get_autocast_dtype(options_.device),
                 ", which tensors without memory do not follow; run it without, and convert the ",
                 "module to that type for the estimate (to())"));
  }
  for (const c10::IValue& each : call.arguments()) {
    visit_tensors_in(each, [&](const at::Tensor& tensor) {
      if (tensor.is_meta()) know_locked(tensor, Timeline::Role::kInput);
    });
  }
}

void StepWatch::note_writes(const libtorch::OperatorCall& call, at::ArrayRef<c10::IValue> arguments,
                            Timeline::Call& noted) {
  for (const auto& write : libtorch::facts_of(call.handle()).writes) {
    if (!write.happens(arguments)) continue;
    visit_tensors_in(arguments[write.argument], [&](const at::Tensor& tensor) {
      const Timeline::Number number = tensor.is_meta() ? number_of(tensor) : -1;
      const auto place = std::ranges::find(noted.arguments, number);
      if (place == noted.arguments.end()) return;
      const auto position = static_cast<std::size_t>(place - noted.arguments.begin());
      if (std::ranges::count(noted.written, position) == 0) noted.written.push_back(position);
      Timeline::Memory& memory = timeline_->memory(number);
      if (std::exchange(memory.is_blank, false)) memory.kind = kind_of(noted.name);
      // It may have got more (resize_).
      memory.bytes = std::max(memory.bytes, static_cast<std::int64_t>(tensor.storage().nbytes()));
    });
  }
}

// Gradients are added up in place by an operator that otherwise gives a new tensor.
void StepWatch::note_sum(const libtorch::OperatorCall& call, Timeline::Call& noted) {
  if (noted.name != "aten::add" || noted.arguments.empty() || !call.results()[0].isTensor()) return;
  const at::Tensor& sum = call.results()[0].toTensor();
  if (sum.is_meta() && number_of(sum) == noted.arguments[0] && noted.results.empty())
    noted.written.push_back(0);
}

void StepWatch::after(libtorch::OperatorCall& call, at::ArrayRef<c10::IValue> arguments) {
  const auto& facts = libtorch::facts_of(call.handle());
  Timeline::Call noted{.name = call.schema().name()};
  noted.phase = is_recomputing() ? Phase::kRecomputation
                : is_backward_   ? Phase::kBackward
                                 : Phase::kForward;
  for (const c10::IValue& each : arguments) {
    visit_tensors_in(each, [&](const at::Tensor& tensor) {
      const Timeline::Number number = tensor.is_meta() ? number_of(tensor) : -1;
      if (number >= 0) noted.arguments.push_back(number);
    });
  }
  for (const c10::IValue& each : call.results()) {
    visit_tensors_in(each, [&](const at::Tensor& tensor) {
      if (!tensor.is_meta() || !tensor.has_storage() || number_of(tensor) >= 0) return;
      const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
      noted.results.push_back(add(tensor, {.bytes = bytes,
                                           .phase = noted.phase,
                                           .kind = kind_of(noted.name),
                                           .is_blank = facts.makes_new}));
    });
  }
  note_writes(call, arguments, noted);
  note_sum(call, noted);
  const bool is_view = noted.results.empty() && noted.written.empty() && facts.aliases;
  const OperatorCost cost =
      cost_of(call.schema(), arguments, call.results(),
              is_view || facts.only_views || facts.metadata_only || facts.writes_no_data);
  noted.flops = cost.flops;
  if (!cost.is_free) {
    noted.seconds = options_.machine.seconds(cost.flops, cost.bytes, cost.is_low_precision).count();
  }
  noted.workspace = workspace_of(call.schema(), arguments, call.results(), options_.device);
  timeline_->add(std::move(noted));
}

}  // namespace reprise::estimate
