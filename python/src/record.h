// Results of the library as Python sees them: figures to read, a repr, and a table for notebooks.
//
//   Record<ScheduleCost>(module, "ScheduleCost", "What a schedule costs.")
//       .figure("peak", &ScheduleCost::peak, "The most bytes at once.");
//
// A figure is an int of bytes where C++ has Bytes, and a float of seconds where it has Seconds.
#pragma once

#include <pybind11/pybind11.h>
#include <reprise/bytes.h>

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>

#include "bindings.h"

namespace reprise::python {

inline std::int64_t plain(Bytes bytes) { return bytes.count; }
inline double plain(Seconds seconds) { return seconds.count(); }
template <class Value>
const Value& plain(const Value& value) {
  return value;
}

// Gives the class a repr and a `_repr_html_` of the figures that note_figure() names.
void describe_by_figures(const py::object& type);
void note_figure(const py::object& type, const char* name, const char* unit);

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
    using Value =
        std::remove_cvref_t<decltype(plain(std::invoke(member, std::declval<const T&>())))>;
    class_.def_property_readonly(
        name, [member](const T& it) -> Value { return plain(std::invoke(member, it)); }, doc);
    return *this;
  }
  Class& type() { return class_; }

 private:
  Class class_;
};

}  // namespace reprise::python
