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
};

// As profile_chain(), but nobody holds the output.
ProfiledPart profile_part(const detail::Layers& layers, const at::Tensor& sample,
                          const ProfileOptions& options);

}  // namespace reprise::region
