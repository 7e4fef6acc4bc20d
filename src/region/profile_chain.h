// A profile of layers that are a part of a chain, one stage of a pipeline: its output goes on to
// somebody else, and its input may be changed in place.
#pragma once

#include <reprise/sequential.h>

namespace reprise::region {

struct ProfiledPart {
  Chain chain;
  at::Tensor output;  // without history
  bool output_requires_grad = false;
  // The layers write to the part's input: the first of them works on a copy of it.
  bool copies_input = false;

  // Of the whole part kept, where its input's gradient is made before those of parameters: the most
  // bytes during each, above what was there before, and what stays between the two.
  struct Apart {
    Bytes input_gradient_peak, kept, weight_gradient_peak;
    Seconds input_gradient{}, weight_gradient{};
  };
  Apart apart;
};

// Measures that for layers which run one after another, without changing gradients or calling hooks
// on parameters.
ProfiledPart::Apart profile_apart(const std::vector<TensorFunction>& functions,
                                  const at::Tensor& sample,
                                  const std::vector<at::Tensor>& parameters);

// As profile_chain(), but nobody holds the output. `apart`: measures that, too.
ProfiledPart profile_part(const detail::Layers& layers, const at::Tensor& sample, bool apart,
                          const ProfileOptions& options);

}  // namespace reprise::region
