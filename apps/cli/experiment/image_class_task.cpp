// ViT tells the classes of pictures (Dosovitskiy et al., arXiv:2010.11929).
#include <ATen/ops/cross_entropy_loss.h>
#include <reprise/error.h>

#include <numeric>

#include "apps/cli/experiment/block_task.h"
#include "apps/cli/experiment/delimited.h"
#include "apps/cli/experiment/fingerprint.h"
#include "apps/cli/experiment/image_set.h"
#include "apps/cli/experiment/installed_data.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/training/draws.h"
#include "models/vit.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kVitBatch = 48, kFullVitBatch = 16;

struct ImageSource {
  std::string path, origin;
  bool is_of_digits = false;
};

ImageSource image_source(const TaskOptions& options) {
  if (options.data.size() > 1) {
    throw UsageError(fmt::format(
        "vit takes one folder of pictures or one table of digits, and {} are given; put the "
        "pictures into one folder",
        options.data.size()));
  }
  if (!options.data.empty()) {
    return {.path = options.data[0],
            .origin = options.data[0],
            .is_of_digits = is_delimited(options.data[0])};
  }
  const InstalledData installed = find_installed_data();
  if (installed.digits.empty()) {
    throw UsageError(
        fmt::format("there are no pictures; give a folder of them with --images, or {}",
                    installed_data_remedy(installed)));
  }
  return {
      .path = installed.digits[0].path, .origin = installed.digits[0].origin, .is_of_digits = true};
}

// Four by four patches, of a digit's 8 by 8 pixels or a picture's 32 by 32.
models::VitOptions vit_shape(const TaskOptions& options, const ImageSource& source) {
  models::VitOptions vit = options.full_size
                               ? models::vit_base()
                               : models::VitOptions{.layers = 8,
                                                    .width = 64,
                                                    .heads = 4,
                                                    .image = source.is_of_digits ? 8 : 32,
                                                    .channels = source.is_of_digits ? 1 : 3,
                                                    .patch = source.is_of_digits ? 2 : 8};
  vit.layers = options.layers.value_or(vit.layers);
  vit.width = options.width.value_or(vit.width);
  vit.heads = options.heads.value_or(vit.heads);
  vit.image = options.image.value_or(vit.image);
  vit.patch = options.patch.value_or(vit.patch);
  vit.dropout = options.dropout;
  vit.fused_attention = options.fused_attention;
  models::check(vit);
  return vit;
}

ImageSet read_images(const ImageSource& source, const models::VitOptions& shape) {
  const ImageShape images{.size = shape.image, .channels = shape.channels};
  return source.is_of_digits ? ImageSet::of_digits(source.path, images)
                             : ImageSet::of_folder(source.path, images);
}

ImageSet read_held_out(const std::string& path, const ImageSet& training,
                       const models::VitOptions& shape) {
  const ImageShape images{.size = shape.image, .channels = shape.channels};
  return is_delimited(path) ? ImageSet::of_digits(path, images)
                            : ImageSet::of_folder(path, images, training.classes());
}

class ImageClassTask : public BlockTask {
 public:
  ImageClassTask(const TaskOptions& options, const ImageSource& source, models::VitOptions shape)
      : BlockTask(options.device, Guesses::kClasses),
        batch_(batch_of(options, options.full_size ? kFullVitBatch : kVitBatch)),
        origin_(source.origin),
        images_(read_images(source, shape)),
        split_(split_examples(images_.size(), origin_)),
        order_(options.seed, split_.training.size()) {
    if (!options.validation_data.empty()) hold_out(options, shape);
    const auto classes = static_cast<std::int64_t>(images_.classes().size());
    shape.classes = options.full_size ? std::max(shape.classes, classes) : classes;
    vit_ = with_seed(options.seed, [&] { return models::Vit(shape); });
    use(vit_);
    validation_ = evenly(split_.validation, kValidationExamples);
  }

  std::string model() const override {
    const models::VitOptions& shape = vit_->options();
    return with_parameter_count(fmt::format(
        "ViT, {} layers of width {}, {} heads, images of {} by {} in patches of {} by {}",
        shape.layers, shape.width, shape.heads, shape.image, shape.image, shape.patch,
        shape.patch));
  }
  std::string units() const override { return "images"; }
  std::string data() const override {
    return fmt::format("{} images of {} classes of {}, {} more held out",
                       format_count(static_cast<double>(split_.training.size())),
                       images_.classes().size(), origin_,
                       format_count(static_cast<double>(split_.validation.size())));
  }
  std::uint64_t fingerprint() const override {
    Fingerprint fingerprint;
    images_.add_to(fingerprint);
    if (held_out_) held_out_->add_to(fingerprint);
    return fingerprint.value();
  }

  at::Tensor first(const at::Tensor& input) override { return vit_->embed(input); }
  at::Tensor loss(const at::Tensor& last, const at::Tensor& target) override {
    return at::cross_entropy_loss(vit_->head(last), target);
  }

  TaskBatch training_batch(std::int64_t step) override {
    std::vector<std::size_t> examples = order_.batch(step, batch_);
    for (std::size_t& example : examples) example = split_.training[example];
    return batch_of_images(images_, examples);
  }

 protected:
  std::size_t validation_batches() const override { return batches_in(validation_.size(), batch_); }
  TaskBatch validation_batch(std::size_t index) override {
    return batch_of_images(held_out_ ? *held_out_ : images_, part_of(validation_, index, batch_));
  }
  Outcome outcome(const at::Tensor& last, const at::Tensor& target) override {
    return class_outcome(vit_->head(last), target);
  }

 private:
  void hold_out(const TaskOptions& options, const models::VitOptions& shape) {
    if (options.validation_data.size() > 1) {
      throw UsageError(fmt::format("vit takes one folder or table for validation, and {} are given",
                                   options.validation_data.size()));
    }
    held_out_ = read_held_out(options.validation_data[0], images_, shape);
    if (held_out_->classes() != images_.classes()) {
      throw UsageError(fmt::format("{} is of other classes than the pictures of {}",
                                   options.validation_data[0], origin_));
    }
    const auto all_of = [](std::size_t count) {
      std::vector<std::size_t> numbers(count);
      std::iota(numbers.begin(), numbers.end(), std::size_t{0});
      return numbers;
    };
    split_ = {.training = all_of(images_.size()), .validation = all_of(held_out_->size())};
    order_ = EpochOrder(options.seed, images_.size());
  }

  TaskBatch batch_of_images(const ImageSet& set, const std::vector<std::size_t>& examples) const {
    const ImageBatch batch = set.batch(examples);
    return {.input = batch.images.to(device()),
            .target = batch.classes.to(device()),
            .units = static_cast<std::int64_t>(examples.size())};
  }

  std::int64_t batch_;
  std::string origin_;
  ImageSet images_;
  std::optional<ImageSet> held_out_;
  Split split_;
  EpochOrder order_;
  models::Vit vit_{nullptr};
  std::vector<std::size_t> validation_;
};

}  // namespace

std::unique_ptr<Task> make_image_class_task(const TaskOptions& options) {
  const ImageSource source = image_source(options);
  return std::make_unique<ImageClassTask>(options, source, vit_shape(options, source));
}

}  // namespace reprise::app
