#include "record.h"

#include <string>

namespace reprise::python {
namespace {

constexpr const char* kFigures = "_figures";

std::string shown(const py::object& value, const std::string& unit) {
  if (value.is_none()) return "";
  if (unit == "bytes") return to_string(Bytes(value.cast<std::int64_t>()));
  if (unit == "seconds") {
    return py::str("{:.4g} s").format(value).cast<std::string>();
  }
  if (py::isinstance<py::float_>(value)) return py::str("{:.4g}").format(value).cast<std::string>();
  return py::str(value).cast<std::string>();
}

py::str repr_of(const py::object& it) {
  std::string text;
  for (const py::handle each : it.attr(kFigures)) {
    const auto [name, unit] = each.cast<std::pair<std::string, std::string>>();
    text += (text.empty() ? "" : ", ") + name + "=" +
            py::repr(it.attr(name.c_str())).cast<std::string>();
  }
  return py::type::of(it).attr("__name__").cast<std::string>() + "(" + text + ")";
}

py::str html_of(const py::object& it) {
  const py::object escape = py::module_::import("html").attr("escape");
  std::string rows;
  for (const py::handle each : it.attr(kFigures)) {
    const auto [name, unit] = each.cast<std::pair<std::string, std::string>>();
    const py::str text = shown(it.attr(name.c_str()), unit);
    rows += "<tr><th>" + name + "</th><td>" + escape(text).cast<std::string>() + "</td></tr>";
  }
  return "<table><caption>" + py::type::of(it).attr("__name__").cast<std::string>() + "</caption>" +
         rows + "</table>";
}

}  // namespace

void describe_by_figures(const py::object& type) {
  type.attr(kFigures) = py::list();
  type.attr("__repr__") = py::cpp_function(&repr_of, py::is_method(type));
  type.attr("_repr_html_") = py::cpp_function(&html_of, py::is_method(type));
}

void note_figure(const py::object& type, const char* name, const char* unit) {
  type.attr(kFigures).attr("append")(py::make_tuple(name, unit));
}

}  // namespace reprise::python
