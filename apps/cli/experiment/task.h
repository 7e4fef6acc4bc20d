// What an experiment trains: a model, its data, and what is measured of it on held-out data.
//
// A task knows nothing of checkpointing. It hands out its parts (what comes before the blocks, the
// blocks as layers, what comes after them) and batches, and the same seed gives the same weights
// and the same batches, so that methods are compared on one and the same run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/experiment/labelled_text.h"
#include "models/strategy.h"

namespace reprise::app {

// What first() and loss() are given, on the task's device.
struct TaskBatch {
  at::Tensor input, target;
  std::int64_t units = 0;  // tokens or images of `input`
};

struct Validation {
  double loss = 0;                   // mean cross entropy in nats, of a word or an example
  std::optional<double> perplexity;  // exp(loss), where words are guessed
  std::optional<double> accuracy;    // the share of examples whose class is right
};

// Calls of one task must not overlap.
class Task {
 public:
  virtual ~Task() = default;

  // "GPT-2, 8 layers of width 96, 4 heads, context 128: 932 k parameters"
  virtual std::string model() const = 0;
  virtual std::string units() const = 0;  // "tokens" or "images"
  // In one line what the data is, how much, and where it is from.
  virtual std::string data() const = 0;
  // Of all that is trained on and held out: the same data has the same one, wherever it lies. Of a
  // folder of pictures all files are read. Throws UsageError for one that cannot be.
  virtual std::uint64_t fingerprint() const = 0;

  virtual torch::nn::Module& module() = 0;
  // The blocks, which a checkpointing method may run again; they hold the model.
  virtual models::Layers layers() = 0;
  // Their names in module(), in the same order.
  virtual std::vector<std::string> layer_names() const = 0;
  virtual at::Tensor first(const at::Tensor& input) = 0;
  // The mean loss, a scalar, of what the last layer made.
  virtual at::Tensor loss(const at::Tensor& last, const at::Tensor& target) = 0;

  // Batch number `step`, from 0: the same for the same options, in whatever order batches are asked
  // for. Draws nothing from LibTorch's generators. Throws UsageError for a picture that cannot be
  // decoded.
  virtual TaskBatch training_batch(std::int64_t step) = 0;
  // On held-out data, the same at every call: without dropout and without a graph. The module's
  // mode and the random state are afterwards as before.
  virtual Validation validate() = 0;
};

// What is empty is the model's default: small, of the true shape, or quick. Small are 8 layers and
// four sequences of 128 bytes, or 48 pictures of 16 patches: less than 100 ms a step on one core,
// and activations of more than ten times the parameters' bytes.
struct TaskOptions {
  std::string model = "gpt2";  // one of task_models()
  // The published shape (BERT-Base, GPT-2 Medium, ViT-B/16), with words instead of bytes as tokens.
  bool full_size = false;
  bool quick = false;  // half the batch
  // bert alone: true: tell the classes of labelled texts; false: guess masked words.
  bool classify = false;
  TextColumns columns;  // for classify

  // Text files and folders; with classify tables of text; of vit one folder of pictures or one
  // table of digits. Empty: what scripts/setup --experiments has installed, or, for text without
  // labels, else the text files of the source tree.
  std::vector<std::string> data;
  // Of the same kinds, for validation alone. Empty: a tenth of the data.
  std::vector<std::string> validation_data;

  std::optional<std::int64_t> batch, layers, width, heads;
  std::optional<std::int64_t> context;       // of bert and gpt2, in tokens
  std::optional<std::int64_t> image, patch;  // of vit, in pixels
  double dropout = 0.1;
  bool fused_attention = false;  // models/transformer.h
  std::uint64_t seed = 1;
  c10::Device device = c10::kCPU;
};

// "bert", "gpt2", "vit".
std::vector<std::string> task_models();

// Reads the data and draws the weights, from the CPU's default generator, which is seeded for it
// and then put back. Throws UsageError: for an unknown model; an option that the model does not
// have, or a value that its shape does not allow; data that is missing, naming
// `scripts/setup --experiments` where that installs some, or too short.
std::unique_ptr<Task> make_task(const TaskOptions& options);

}  // namespace reprise::app
