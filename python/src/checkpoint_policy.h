// Policies of Python: lists of operators, and functions that are asked about each call.
#pragma once

#include <reprise/selective.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"

namespace reprise::python {

// Saves the operators of this list of torch.ops' overloads, and recomputes the others.
OperatorPolicy policy_of_list(const py::list& overloads);

// Asks `function(SelectiveCheckpointContext, overload, *args, **kwargs)`, which returns a
// CheckpointPolicy or a bool. `context` is the class, `policies` the enumeration.
OperatorPolicy policy_of_function(const py::object& function, const py::object& context,
                                  const py::object& policies);

}  // namespace reprise::python
