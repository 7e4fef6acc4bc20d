// What the tasks have in common: a model of blocks, run plainly over held-out batches.
#pragma once

#include <fmt/format.h>
#include <reprise/random_state.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/experiment/task.h"
#include "apps/cli/experiment/token_data.h"

namespace reprise::app {

// The tasks' own factories.
std::unique_ptr<Task> make_gpt_task(const TaskOptions& options);
std::unique_ptr<Task> make_masked_word_task(const TaskOptions& options);
std::unique_ptr<Task> make_text_class_task(const TaskOptions& options);
std::unique_ptr<Task> make_image_class_task(const TaskOptions& options);

// The options' batch, or else `usual`, or half of it if the options ask for a quick run.
std::int64_t batch_of(const TaskOptions& options, std::int64_t usual);
// Which of `count` examples are trained on and which are held out: a tenth, drawn at random, since
// data may be in some order, but always the same. Throws UsageError, naming `origin`, if fewer than
// two examples are there.
struct Split {
  std::vector<std::size_t> training, validation;
};
Split split_examples(std::size_t count, const std::string& origin);
// At most so many of the examples that validation is to take, evenly.
inline constexpr std::size_t kValidationExamples = 256;
std::vector<std::size_t> evenly(std::vector<std::size_t> examples, std::size_t most);
// Batch number `index` of such a list; the last may be shorter.
std::size_t batches_in(std::size_t count, std::int64_t batch);
std::vector<std::size_t> part_of(const std::vector<std::size_t>& all, std::size_t index,
                                 std::int64_t batch);

// Makes a model with weights of its own seed, and leaves the random state as it was.
void seed_cpu_generator(std::uint64_t seed);
template <class Make>
auto with_seed(std::uint64_t seed, Make&& make) {
  struct Restored {
    RandomState before = RandomState::of_devices({});
    ~Restored() { before.restore(); }
  } restored;
  seed_cpu_generator(seed);
  return make();
}

// What one batch's results are worth.
struct Outcome {
  at::Tensor loss;         // mean, over `count`
  std::int64_t right = 0;  // of them, where classes are told
  std::int64_t count = 0;
};
// Of logits [batch, classes].
Outcome class_outcome(const at::Tensor& logits, const at::Tensor& classes);

class BlockTask : public Task {
 public:
  models::Layers layers() override { return layers_; }
  std::vector<std::string> layer_names() const override { return names_; }
  torch::nn::Module& module() override { return *module_; }
  Validation validate() override;

 protected:
  enum class Guesses { kWords, kClasses };
  BlockTask(c10::Device device, Guesses guesses) : device_(device), guesses_(guesses) {}

  // Moves the model to the device and takes its blocks as layers.
  template <class Model>
  void use(const Model& model) {
    module_ = model.ptr();
    module_->to(device_);
    for (const auto& block : model->blocks()) {
      layers_.push_back([block = block.ptr()](const at::Tensor& x) { return block->forward(x); });
      for (const auto& child : module_->named_children()) {
        if (child.value() == block.ptr()) names_.push_back(child.key());
      }
    }
  }

  c10::Device device() const { return device_; }
  // `text`: the model's shape.
  std::string with_parameter_count(const std::string& text) const;

  virtual std::size_t validation_batches() const = 0;
  virtual TaskBatch validation_batch(std::size_t index) = 0;
  virtual Outcome outcome(const at::Tensor& last, const at::Tensor& target) = 0;

 private:
  c10::Device device_;
  Guesses guesses_;
  std::shared_ptr<torch::nn::Module> module_;
  models::Layers layers_;
  std::vector<std::string> names_;
};

}  // namespace reprise::app
