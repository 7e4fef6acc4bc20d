// The module reprise._reprise. The package imports torch, compares its version and then loads this.
#include "bindings.h"

#include <reprise/reprise.h>

PYBIND11_MODULE(_reprise, module) {
  module.doc() = "The library's objects; use the package `reprise`, which exports them.";
  module.attr("__version__") = reprise::version();
  module.attr("torch_version") = reprise::libtorch_version();
  reprise::python::bind_errors(module);
  reprise::python::bind_memory(module);
  reprise::python::bind_budget(module);
  reprise::python::bind_checkpoint(module);
  reprise::python::bind_access(module);
  reprise::python::bind_compiled_plan(module);
  reprise::python::bind_pipeline(module);
  reprise::python::bind_step_trace(module);
  reprise::python::bind_chain(module);
  reprise::python::bind_estimate(module);
  reprise::python::bind_stores(module);
  reprise::python::bind_extensions(module);
  reprise::python::bind_pgac(module);
}
