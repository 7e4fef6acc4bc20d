// Regions from Python.
#include "bindings.h"

namespace reprise::python {

void bind_checkpoint(py::module_& /*module*/) {}

}  // namespace reprise::python
