// Policies of Python: lists of operators, and functions that are asked about each call.
#pragma once

#include <reprise/selective.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"

namespace reprise::python {

// `must`: what is to be saved is an error where it was changed in place since. Otherwise it is kept
// with its changes or recomputed: torch's allow_cache_entry_mutation, which uses the changed value and
// makes the changes once more.

// Saves the operators of this list of torch.ops' overloads, and recomputes the others.
OperatorPolicy policy_of_list(const py::list& overloads, bool must);

// Asks `function(SelectiveCheckpointContext, overload, *args, **kwargs)`, which returns a
// CheckpointPolicy or a bool. `context` is the class, `policies` the enumeration.
OperatorPolicy policy_of_function(const py::object& function, bool must, const py::object& context,
                                  const py::object& policies);

// A list or a function of Python that says what a region keeps.
struct Selective {
  OperatorPolicy policy;
};

}  // namespace reprise::python
