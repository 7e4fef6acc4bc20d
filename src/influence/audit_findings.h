// What an audit (layer_audit.h) finds in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace reprise::influence {

// The sum of the squares of its elements.
double square_of(const at::Tensor& tensor);

// What noise in one layer's values alone did.
struct LayerFindings {
  double noise = 0;   // relative square, of the values that were read
  double spread = 0;  // of them: LayerNoise
  double values = 0;
  double input_error = 0;      // of the gradient of the input, a relative square
  double parameter_error = 0;  // of all parameters' gradients, a square
  double gradient_square = 0;  // of those without noise
  double carriers = 0;         // elements that carry the error: AuditedLayer
  // What noise that came with the gradient of the result did to those of the parameters, a square,
  // and to that of the input, a relative square; both divided by the relative square of that noise.
  // -1: none came.
  double parameter_response = -1, input_response = -1;
  int runs = 0;  // that these are sums of; 0: backward did not come by
};

// Of one step, which may be of several runs. Shared by what backward calls.
class AuditFindings {
 public:
  explicit AuditFindings(std::size_t layers)
      : layers_(layers), parameters_(layers), expected_(layers) {}

  // Backward has one more run of the layer to find.
  void expect(std::size_t layer);
  void add(std::size_t layer, const LayerFindings& found);
  // Gradients of a layer's parameters, as they are and as the lossy step's would be.
  void add_gradients(std::size_t layer, const std::vector<at::Tensor>& parameters,
                     const std::vector<at::Tensor>& exact, const std::vector<at::Tensor>& lossy);
  // The layer's backward cannot be run by itself.
  void fail(std::size_t layer, const std::string& reason);

  // What follows is for after backward.
  bool was_expected() const;
  // The last layer with a run that nothing was found of; none where all were found.
  std::optional<std::size_t> missing() const;
  const std::optional<std::pair<std::size_t, std::string>>& failure() const { return failure_; }
  const std::vector<LayerFindings>& layers() const { return layers_; }
  const std::vector<std::vector<at::Tensor>>& parameters() const { return parameters_; }
  // |g' - g| / |g| of all parameters, g' the lossy step's gradients; none if there are none.
  std::optional<double> error() const;

 private:
  struct Gradients {
    at::Tensor exact, error;
  };

  std::mutex mutex_;
  std::vector<LayerFindings> layers_;
  std::vector<std::vector<at::Tensor>> parameters_;
  std::unordered_map<const c10::TensorImpl*, Gradients> gradients_;
  std::vector<int> expected_;  // runs of each layer
  std::optional<std::pair<std::size_t, std::string>> failure_;
};

}  // namespace reprise::influence
