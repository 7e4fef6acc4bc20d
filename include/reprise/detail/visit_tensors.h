// Finding the tensors inside an argument or a result: the customization point of checkpoint().
//
// A region must know the tensors that it is given, wherever they sit: they take part in autograd,
// are saved through it, and are checked for changes. visit_tensors(value, f) calls f(at::Tensor&)
// for each tensor inside `value`, in a fixed order. It knows tensors, std::optional, pair, tuple,
// array, vector, deque, list, map, unordered_map (values, not keys), variant, and any nesting of
// them, and c10::IValue. Everything else is opaque: it is kept as it is, and tensors inside it are
// not seen.
//
// For a type of your own, write a function beside it that argument-dependent lookup finds:
//
//   struct Batch { at::Tensor tokens; std::vector<at::Tensor> masks; int step; };
//   template <class F> void reprise_visit_tensors(Batch& b, F&& f) {
//     reprise::visit_tensors(b.tokens, f);
//     reprise::visit_tensors(b.masks, f);
//   }
//
// It must visit the same tensors in the same order each time, and the type must be copyable: a
// region keeps a copy from which the tensors have been taken out, and fills a fresh copy for each
// run.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace c10 {
struct IValue;
}

namespace reprise {

namespace detail {

struct IgnoreTensor {
  void operator()(at::Tensor&) const {}
};

// Found by argument-dependent lookup in the user's namespace.
template <class T>
concept HasOwnVisit =
    std::is_class_v<T> && requires(T& value, IgnoreTensor f) { reprise_visit_tensors(value, f); };

template <class T>
struct Visitable : std::bool_constant<HasOwnVisit<T>> {};
template <>
struct Visitable<c10::IValue> : std::true_type {};
template <>
struct Visitable<at::Tensor> : std::true_type {};
template <class T>
struct Visitable<std::optional<T>> : Visitable<T> {};
template <class A, class B>
struct Visitable<std::pair<A, B>> : std::disjunction<Visitable<A>, Visitable<B>> {};
template <class... T>
struct Visitable<std::tuple<T...>> : std::disjunction<Visitable<T>...> {};
template <class... T>
struct Visitable<std::variant<T...>> : std::disjunction<Visitable<T>...> {};
template <class T, std::size_t N>
struct Visitable<std::array<T, N>> : Visitable<T> {};
template <class T, class A>
struct Visitable<std::vector<T, A>> : Visitable<T> {};
template <class T, class A>
struct Visitable<std::deque<T, A>> : Visitable<T> {};
template <class T, class A>
struct Visitable<std::list<T, A>> : Visitable<T> {};
template <class K, class T, class... R>
struct Visitable<std::map<K, T, R...>> : Visitable<T> {};
template <class K, class T, class... R>
struct Visitable<std::unordered_map<K, T, R...>> : Visitable<T> {};

template <class T>
concept Range = requires(T& value) {
  value.begin();
  value.end();
};

}  // namespace detail

// True for types in which visit_tensors may find a tensor.
template <class T>
inline constexpr bool holds_tensors = detail::Visitable<std::remove_cvref_t<T>>::value;

// Calls f(at::Tensor&) for each tensor in `value`, undefined ones included. A no-op for opaque
// types.
template <class T, class F>
void visit_tensors(T& value, F&& f);

namespace detail {

// TorchScript's values. Lists and dictionaries are shared handles: they are replaced by changed
// copies, so that other holders keep theirs. (A template, so that only users of IValue need its
// header.)
template <class IValue, class F>
void visit_script_value(IValue& value, F& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTuple()) {
    const auto tuple = std::as_const(value).toTuple();
    std::vector<IValue> elements = tuple->elements().vec();
    for (IValue& element : elements) visit_script_value(element, f);
    using Tuple = typename std::remove_cvref_t<decltype(tuple)>::element_type;
    value = IValue(Tuple::createNamed(std::move(elements), tuple->type()));
  } else if (value.isList()) {
    auto list = std::as_const(value).toList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) {
      IValue element = list.get(i);
      visit_script_value(element, f);
      list.set(i, std::move(element));
    }
    value = IValue(std::move(list));
  } else if (value.isGenericDict()) {
    auto dictionary = std::as_const(value).toGenericDict().copy();
    for (auto& entry : dictionary) {
      IValue mapped = entry.value();
      visit_script_value(mapped, f);
      entry.setValue(std::move(mapped));
    }
    value = IValue(std::move(dictionary));
  }
}

template <class T, class F>
void visit_standard(T& value, F& f) {
  if constexpr (std::same_as<T, at::Tensor>) {
    f(value);
  } else if constexpr (std::same_as<T, c10::IValue>) {
    visit_script_value(value, f);
  } else if constexpr (HasOwnVisit<T>) {
    reprise_visit_tensors(value, f);
  } else if constexpr (requires { typename std::tuple_size<T>::type; }) {
    std::apply([&](auto&... part) { (reprise::visit_tensors(part, f), ...); }, value);
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (auto& entry : value) reprise::visit_tensors(entry.second, f);
  } else if constexpr (Range<T>) {
    for (auto& part : value) reprise::visit_tensors(part, f);
  } else if constexpr (requires { std::variant_size<T>::value; }) {
    std::visit([&](auto& part) { reprise::visit_tensors(part, f); }, value);
  } else {
    if (value) reprise::visit_tensors(*value, f);
  }
}

}  // namespace detail

template <class T, class F>
void visit_tensors(T& value, F&& f) {
  if constexpr (holds_tensors<T>) detail::visit_standard(value, f);
}

}  // namespace reprise
