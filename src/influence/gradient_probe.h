// What noise in a layer's saved values does to its gradients, measured in backward of a running
// step (reprise/pgac.h, LossyOptions, "Error").
#pragma once

#include <reprise/bytes.h>
#include <reprise/checkpoint_sequential.h>
#include <reprise/compressed_store.h>

#include <functional>
#include <memory>
#include <vector>

namespace reprise::influence {

struct ProbeFindings {
  // Backward of the layer cannot be run by itself; nothing else is known then.
  bool has_failed = false;

  double noise = 0;   // relative square, of the values that were read
  double spread = 0;  // of them: LayerNoise
  double values = 0;
  // Of the gradient of the input, a relative square; 0 if there is none.
  double input_error = 0;
  double parameter_error = 0;  // of all parameters' gradients, a square
  std::vector<at::Tensor> parameters;
};

struct ProbeSettings {
  std::shared_ptr<CompressedStore> store;  // makes the noise
  Compression route = Compression::kInt8;  // its kind
  Bytes minimum;                           // of values that get any
  std::function<void(const ProbeFindings&)> report;
};

// What `layer` makes of the input, with all that it saves as it is. When the gradient of that has
// been made, its gradients are made twice more within backward, without and with noise, and
// reported, once; not in a backward that creates a graph. The layer must not write to its input.
at::Tensor run_probed(const TensorFunction& layer, const at::Tensor& input, ProbeSettings settings);

}  // namespace reprise::influence
