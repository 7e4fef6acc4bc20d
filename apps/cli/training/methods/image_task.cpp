// Pictures: ViT tells their classes (Dosovitskiy et al., arXiv:2010.11929).
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <utility>

#include "apps/cli/training/draws.h"
#include "apps/cli/training/methods/image_table.h"
#include "apps/cli/training/methods/task.h"
#include "models/vit.h"

namespace reprise::app {

namespace {

constexpr std::size_t kHeldOutShare = 10;  // one picture of so many
constexpr std::size_t kMostHeldOut = 256;
// The same pictures are held out in all runs, whatever their seed.
constexpr std::uint64_t kSplitSeed = 0;

using Examples = std::vector<std::size_t>;

models::VitOptions vit_shape(const TaskOptions& options, const ImageTable& table) {
  const RunOptions& run = options.run;
  if (table.side % options.patch != 0) {
    throw UsageError(
        fmt::format("--patch {} does not divide the {} pixels of a picture's side: choose a "
                    "--patch that does, such as 1",
                    options.patch, table.side));
  }
  return {.layers = run.gpt.layers,
          .width = run.gpt.width,
          .heads = run.gpt.heads,
          .image = table.side,
          .channels = 1,
          .patch = options.patch,
          .classes = table.kinds,
          .dropout = run.gpt.dropout,
          .fused_attention = run.gpt.fused_attention};
}

TaskBatch batch_of(const ImageTable& table, const Examples& examples, c10::Device device) {
  const std::vector<std::int64_t> numbers(examples.begin(), examples.end());
  const at::Tensor index = at::tensor(numbers);
  return {.input = table.images.index_select(0, index).to(device),
          .target = table.classes.index_select(0, index).to(device),
          .units = std::ssize(examples)};
}

const std::string& only_table(const std::vector<std::string>& data) {
  if (data.size() == 1) return data.front();
  throw UsageError(
      data.empty() ? "vit needs a table of pictures: give one with --data, such as the digits that "
                     "tools/pgac_experiment/run.py writes"
                   : fmt::format("vit takes one table of pictures, and --data names {}: give one",
                                 data.size()));
}

}  // namespace

Task make_image_task(const TaskOptions& options, c10::Device device) {
  const RunOptions& run = options.run;
  const std::string& file = only_table(run.data);
  const auto table = std::make_shared<const ImageTable>(read_image_table(file));
  const models::VitOptions shape = vit_shape(options, *table);
  at::manual_seed(static_cast<std::uint64_t>(run.seed));
  models::Vit vit(shape);
  Task task;
  use(task, vit, device);
  task.model = fmt::format(
      "ViT, {} layers of width {}, {} heads, {} by {} pixels in patches of {} by {}", shape.layers,
      shape.width, shape.heads, shape.image, shape.image, shape.patch, shape.patch);
  task.units = "images";
  task.fingerprint = table->fingerprint;
  task.first = [vit](const at::Tensor& images) mutable { return vit->embed(images); };
  task.classify = [vit](const at::Tensor& last) mutable { return vit->head(last); };
  task.loss = [classify = task.classify](const at::Tensor& last, const at::Tensor& target) {
    return at::cross_entropy_loss(classify(last), target);
  };
  const auto count = static_cast<std::size_t>(table->classes.numel());
  Draws draws(kSplitSeed, count);
  const Examples drawn = sample(count, count, draws);
  const auto split = drawn.begin() + static_cast<std::ptrdiff_t>(count / kHeldOutShare);
  const auto last = drawn.begin() + std::min<std::ptrdiff_t>(split - drawn.begin(), kMostHeldOut);
  for (auto begin = drawn.begin(); begin != last;) {
    const auto end = begin + std::min<std::ptrdiff_t>(run.batch, last - begin);
    task.held_out.push_back(batch_of(*table, {begin, end}, device));
    begin = end;
  }
  const auto training = std::make_shared<const Examples>(split, drawn.end());
  const auto order = std::make_shared<EpochOrder>(run.seed, training->size());
  task.data = fmt::format("{}: {} pictures of {} classes, {} more held out", file, training->size(),
                          table->kinds, split - drawn.begin());
  task.batch = [=, size = run.batch](std::int64_t step) {
    Examples examples = order->batch(step, size);
    for (std::size_t& example : examples) example = (*training)[example];
    return batch_of(*table, examples, device);
  };
  return task;
}

}  // namespace reprise::app
