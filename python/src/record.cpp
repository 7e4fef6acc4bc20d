#include "record.h"

#include <reprise/error.h>

#include <string>

namespace reprise::python {
namespace {

constexpr const char* kFigures = "_figures";
constexpr const char* kNames = "_names";

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

// A value of JSON: what is neither Python's own nor a record is told by its str().
py::object for_json(const py::object& value) {
  if (py::hasattr(value, "as_dict")) return value.attr("as_dict")();
  if (py::type::of(value).attr("__module__").cast<std::string>() != "builtins")
    return py::str(value);
  if (!py::isinstance<py::list>(value)) return value;
  py::list all;
  for (const py::handle each : value)
    all.append(for_json(py::reinterpret_borrow<py::object>(each)));
  return all;
}

py::dict dict_of(const py::object& it) {
  py::dict all;
  for (const py::handle name : it.attr(kNames)) all[name] = for_json(it.attr(name));
  return all;
}

}  // namespace

void describe_by_figures(const py::object& type) {
  type.attr(kFigures) = py::list();
  type.attr(kNames) = py::list();
  type.attr("__repr__") = py::cpp_function(&repr_of, py::is_method(type));
  type.attr("_repr_html_") = py::cpp_function(&html_of, py::is_method(type));
  type.attr("as_dict") = py::cpp_function(
      &dict_of, py::name("as_dict"), py::is_method(type),
      "All figures by name, for json.dumps(): bytes are ints, times floats of seconds. A record in it "
      "is a dict, too.");
}

void note_name(const py::object& type, const char* name) { type.attr(kNames).attr("append")(name); }

void check_pickle(const py::object& type, std::size_t values, std::size_t expected) {
  if (values == expected) return;
  throw UsageError(type.attr("__name__").cast<std::string>() + ": the pickle has " +
                   std::to_string(values) + " values, and this version of reprise has " +
                   std::to_string(expected) + "; read it with the version that wrote it");
}

void note_figure(const py::object& type, const char* name, const char* unit) {
  type.attr(kFigures).attr("append")(py::make_tuple(name, unit));
}

}  // namespace reprise::python
