// Results of the library as Python sees them: figures to read, a repr, a table for notebooks, a dict
// for JSON, and a pickle.
//
//   Record<ScheduleCost>(module, "ScheduleCost", "What a schedule costs.")
//       .figure("peak", &ScheduleCost::peak, "The most bytes at once.")
//       .pickled();
//
// A figure is an int of bytes where C++ has Bytes, and a float of seconds where it has Seconds.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <reprise/bytes.h>

#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.h"

namespace reprise::python {

inline std::int64_t plain(Bytes bytes) { return bytes.count; }
inline double plain(Seconds seconds) { return seconds.count(); }
template <class Value>
  requires(!std::is_enum_v<Value>)
const Value& plain(const Value& value) {
  return value;
}
template <class Value>
  requires std::is_enum_v<Value>
std::int64_t plain(Value value) {
  return static_cast<std::int64_t>(value);
}
template <class Value>
using Plain = std::remove_cvref_t<decltype(plain(std::declval<const Value&>()))>;

// Gives the class a repr and a `_repr_html_` of the figures that note_figure() names, and an as_dict()
// of all names.
void describe_by_figures(const py::object& type);
void note_figure(const py::object& type, const char* name, const char* unit);
void note_name(const py::object& type, const char* name);
// Throws UsageError for a pickle that has another number of values.
void check_pickle(const py::object& type, std::size_t values, std::size_t expected);

template <class T, class... Options>
class Record {
 public:
  using Class = py::class_<T, Options...>;

  Record(const py::handle& scope, const char* name, const char* doc) : class_(scope, name, doc) {
    describe_by_figures(class_);
  }

  // `member` is a member, a method or a function of the object.
  template <class Member>
  Record& figure(const char* name, Member member, const char* doc) {
    using Value = std::remove_cvref_t<std::invoke_result_t<Member, const T&>>;
    note_figure(class_, name,
                std::same_as<Value, Bytes>     ? "bytes"
                : std::same_as<Value, Seconds> ? "seconds"
                                               : "");
    return detail(name, std::move(member), doc);
  }
  // A figure that is too long for the repr and the table.
  template <class Member>
  Record& detail(const char* name, Member member, const char* doc) {
    using Value = Plain<std::remove_cvref_t<std::invoke_result_t<Member, const T&>>>;
    note_name(class_, name);
    class_.def_property_readonly(
        name, [member](const T& it) -> Value { return plain(std::invoke(member, it)); }, doc);
    if constexpr (std::is_member_object_pointer_v<Member>) kept(member);
    return *this;
  }

  // A part of the pickle. Figures and details that are members are parts of it, too.
  template <class Value>
  Record& kept(Value T::*member) {
    return kept([member](const T& it) { return plain(it.*member); },
                [member](T& it, const Plain<Value>& value) { it.*member = Value(value); });
  }
  template <class Get, class Set>
  Record& kept(Get get, Set set) {
    using Value = std::invoke_result_t<Get, const T&>;
    parts_.push_back({[get](const T& it) { return py::cast(get(it)); },
                      [set](T& it, const py::handle& value) { set(it, value.cast<Value>()); }});
    return *this;
  }
  // With it the object can be pickled and copied. `make` makes the one that takes the values of the
  // pickle.
  Record& pickled(T (*make)(const py::tuple& values) = [](const py::tuple&) { return T(); }) {
    class_.def(py::pickle(
        [parts = parts_](const T& it) {
          py::tuple values(parts.size());
          for (std::size_t i = 0; i < parts.size(); ++i) values[i] = parts[i].get(it);
          return values;
        },
        [parts = parts_, make, type = py::handle(class_)](const py::tuple& values) {
          check_pickle(py::reinterpret_borrow<py::object>(type), values.size(), parts.size());
          T it = make(values);
          for (std::size_t i = 0; i < parts.size(); ++i) parts[i].set(it, values[i]);
          return it;
        }));
    return *this;
  }
  // The same for a class that is written and read as text.
  Record& pickled_as_text() {
    class_.def(py::pickle([](const T& it) { return it.json(); },
                          [](const std::string& text) { return T::parse(text, "pickle"); }));
    return *this;
  }
  Class& type() { return class_; }

 private:
  struct Part {
    std::function<py::object(const T&)> get;
    std::function<void(T&, const py::handle&)> set;
  };

  Class class_;
  std::vector<Part> parts_;
};

}  // namespace reprise::python
