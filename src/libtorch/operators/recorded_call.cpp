#include "libtorch/operators/recorded_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <future>
#include <optional>
#include <unordered_map>
#include <utility>

#include "libtorch/base/backends_only.h"
#include "libtorch/memory/caught_refusal.h"
#include "libtorch/memory/limited_work.h"
#include "libtorch/operators/own_draws.h"

namespace reprise::libtorch {
namespace {

// Same bits: no number is taken for another, not even zero for minus zero.
bool are_same(const c10::IValue& one, const c10::IValue& other) {
  if (one.isInt()) return other.isInt() && one.toInt() == other.toInt();
  if (one.isNone()) return other.isNone();
  if (one.isBool()) return other.isBool() && one.toBool() == other.toBool();
  if (one.isDouble()) {
    return other.isDouble() && std::bit_cast<std::uint64_t>(one.toDouble()) ==
                                   std::bit_cast<std::uint64_t>(other.toDouble());
  }
  if (one.isTensor()) return other.isTensor();
  if (one.isList()) {
    if (!other.isList()) return false;
    const auto mine = one.toListRef();
    const auto theirs = other.toListRef();
    return std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(), are_same);
  }
  if (one.isString()) return other.isString() && one.toStringRef() == other.toStringRef();
  if (one.isDevice()) return other.isDevice() && one.toDevice() == other.toDevice();
  return false;
}

class Hash {
 public:
  void add(std::uint64_t value) { state_ = (std::rotl(state_, 5) ^ value) * 0x9e3779b97f4a7c15; }
  std::uint64_t value() const { return state_ ^ (state_ >> 32); }

 private:
  std::uint64_t state_ = 0;
};

// False where it cannot be compared with others of its kind.
bool add_argument(Hash& hash, const c10::IValue& argument) {
  if (argument.isInt()) {
    hash.add(static_cast<std::uint64_t>(argument.toInt()));
  } else if (argument.isBool()) {
    hash.add(argument.toBool() ? 1 : 2);
  } else if (argument.isDouble()) {
    hash.add(std::bit_cast<std::uint64_t>(argument.toDouble()));
  } else if (argument.isIntList() || argument.isBoolList() || argument.isDoubleList()) {
    hash.add(argument.toListRef().size());
    for (const c10::IValue& element : argument.toListRef()) add_argument(hash, element);
  } else {
    // A generator may be made for one call, and a form that is kept would keep it.
    return argument.isNone() || argument.isString() || argument.isDevice();
  }
  return true;
}

// Not all of it: what is alike so far is compared.
void add_tensor(Hash& hash, const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const auto sizes = impl.sizes();
  hash.add(static_cast<std::uint64_t>(impl.numel()) << 16 | sizes.size() << 8 | impl.itemsize());
  if (!sizes.empty())
    hash.add(static_cast<std::uint64_t>(sizes.back()) << 32 ^
             static_cast<std::uint64_t>(impl.storage_offset()));
}

// The tensors of a call's slots, in order.
class Met {
 public:
  // The first slot with this tensor, which stands in the next one; kNoSlot where that is the first.
  std::int16_t before(const c10::TensorImpl& tensor) {
    const auto number = static_cast<std::int16_t>(count_++);
    if (number < kFew) {
      for (std::int16_t i = 0; i < number; ++i) {
        if (few_[i] == &tensor) return i;
      }
      few_[number] = &tensor;
      return CallForm::kNoSlot;
    }
    if (many_.empty()) {
      for (std::int16_t i = 0; i < kFew; ++i) many_.emplace(few_[i], i);
    }
    const auto [place, is_new] = many_.emplace(&tensor, number);
    return is_new ? CallForm::kNoSlot : place->second;
  }

 private:
  static constexpr std::int16_t kFew = 8;
  std::size_t count_ = 0;
  // Null where the slot has the tensor of another one.
  std::array<const c10::TensorImpl*, kFew> few_{};
  std::unordered_map<const c10::TensorImpl*, std::int16_t> many_;
};

}  // namespace

CallForm::CallForm(const OperatorCall& call)
    : op(call.handle()),
      grad_mode(c10::GradMode::is_enabled()),
      ambient(AmbientState::take_for_call()) {
  const auto given = call.arguments();
  Met met;
  arguments.reserve(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const c10::IValue& argument = given[i];
    const auto add = [&](const at::Tensor& tensor, int element) {
      if (!tensor.defined()) return;
      Slot& slot = slots.emplace_back();
      slot.argument = static_cast<std::uint16_t>(i);
      slot.element = static_cast<std::int16_t>(element);
      slot.same_as = met.before(*tensor.unsafeGetTensorImpl());
      slot.form.take(tensor);
    };
    if (argument.isTensor()) {
      add(argument.toTensor(), -1);
      arguments.emplace_back(at::Tensor());
    } else if (argument.isTensorList()) {
      const auto list = argument.toListRef();
      c10::List<at::Tensor> empty;
      for (std::size_t k = 0; k < list.size(); ++k) {
        add(list[k].toTensor(), static_cast<int>(k));
        empty.push_back(at::Tensor());
      }
      arguments.emplace_back(std::move(empty));
    } else if (argument.isOptionalTensorList()) {
      const auto list = argument.toListRef();
      c10::List<std::optional<at::Tensor>> empty;
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (list[k].isTensor()) add(list[k].toTensor(), static_cast<int>(k));
        empty.push_back(std::nullopt);
      }
      arguments.emplace_back(std::move(empty));
    } else {
      arguments.push_back(argument);
    }
  }
}

CallForm::CallForm(std::shared_ptr<const RecordedFunction> called,
                   const std::vector<at::Tensor>& tensors)
    : op(c10::Dispatcher::singleton().findSchemaOrThrow("aten::alias", "")),
      function(std::move(called)),
      grad_mode(false) {
  Met met;
  for (const at::Tensor& tensor : tensors) {
    Slot& slot = slots.emplace_back();
    slot.argument = static_cast<std::uint16_t>(slots.size() - 1);
    slot.element = -1;
    slot.same_as = met.before(*tensor.unsafeGetTensorImpl());
    slot.form.take(tensor);
  }
}

bool CallForm::is_of(const OperatorCall& call, const AmbientState& now) const {
  if (&op.schema() != &call.schema() || grad_mode != c10::GradMode::is_enabled() ||
      ambient != now) {
    return false;
  }
  Met met;
  const auto given = call.arguments();
  const Slot* slot = slots.begin();
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto is_next = [&](const at::Tensor& tensor, int element) {
      if (!tensor.defined()) return true;
      const bool is_same = slot != slots.end() && slot->argument == i && slot->element == element &&
                           slot->same_as == met.before(*tensor.unsafeGetTensorImpl()) &&
                           slot->form.is_of(tensor);
      ++slot;
      return is_same;
    };
    if (given[i].isTensor()) {
      if (!arguments[i].isTensor() || !is_next(given[i].toTensor(), -1)) return false;
    } else if (given[i].isTensorList() || given[i].isOptionalTensorList()) {
      if (!arguments[i].isList()) return false;
      const auto list = given[i].toListRef();
      if (list.size() != arguments[i].toListRef().size()) return false;
      for (std::size_t k = 0; k < list.size(); ++k) {
        if (list[k].isTensor() && !is_next(list[k].toTensor(), static_cast<int>(k))) return false;
      }
    } else if (!are_same(given[i], arguments[i])) {
      return false;
    }
  }
  return slot == slots.end();
}

namespace {

void add_text(Hash& hash, const std::string& text) {
  for (const char c : text) hash.add(static_cast<unsigned char>(c));
}

std::uint64_t hash_of_name(const c10::FunctionSchema& schema) {
  Hash hash;
  add_text(hash, schema.name());
  hash.add('.');
  add_text(hash, schema.overload_name());
  return hash.value();
}

// `op`: which operator it is.
std::uint64_t signature_of(const CallForm& form, std::uint64_t op) {
  Hash hash;
  hash.add(op);
  for (const CallForm::Slot& slot : form.slots) {
    const auto type = static_cast<std::uint64_t>(c10::typeMetaToScalarType(slot.form.dtype));
    hash.add(type << 32 | slot.form.sizes.size() << 16 | slot.argument);
    for (const std::int64_t size : slot.form.sizes) hash.add(static_cast<std::uint64_t>(size));
  }
  for (std::size_t i = 0; i < form.arguments.size(); ++i) {
    const c10::IValue& argument = form.arguments[i];
    if (argument.isNone() || argument.isDouble() || argument.isDoubleList()) continue;
    hash.add(i);
    add_argument(hash, argument);
  }
  return hash.value();
}

}  // namespace

std::uint64_t signature_of(const CallForm& form) {
  return signature_of(form, reinterpret_cast<std::uintptr_t>(&form.op.schema()));
}

std::uint64_t key_of(const OperatorCall& call, const CallForms::Found& found) {
  if (!found.is_comparable) return hash_of_name(call.schema());
  if (found.form == nullptr) return signature_of(CallForm(call), hash_of_name(call.schema()));
  std::uint64_t& key = found.form->learnt.key;
  if (key == 0) key = signature_of(*found.form, hash_of_name(call.schema()));
  return key;
}

CallForms::CallForms() : table_(1024) {}

CallForms::~CallForms() { clear(); }

void CallForms::clear() {
  for (CallForm*& form : table_) {
    if (form != nullptr && --form->users == 0) delete form;
    form = nullptr;
  }
  count_ = 0;
}

void CallForms::renew() {
  if (count_ > kMost / 2) clear();
}

CallForms::Found CallForms::find(const OperatorCall& call, c10::DeviceType device) const {
  Hash hash;
  hash.add(reinterpret_cast<std::uintptr_t>(&call.schema()));
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return true;
    if (!is_plain(tensor, device)) return false;
    add_tensor(hash, tensor);
    return true;
  };
  for (const c10::IValue& argument : call.arguments()) {
    if (argument.isTensor()) {
      if (!add(argument.toTensor())) return {};
    } else if (argument.isTensorList() || argument.isOptionalTensorList()) {
      for (const c10::IValue& element : argument.toListRef()) {
        if (element.isTensor() && !add(element.toTensor())) return {};
      }
    } else if (!add_argument(hash, argument)) {
      return {};
    }
  }
  const std::uint64_t wanted = hash.value();
  const AmbientState now = AmbientState::take_for_call();
  const std::size_t mask = table_.size() - 1;
  for (std::size_t place = wanted & mask; table_[place] != nullptr; place = (place + 1) & mask) {
    CallForm* const form = table_[place];
    if (form->hash == wanted && form->is_of(call, now)) return {form, wanted, true};
  }
  return {nullptr, wanted, true};
}

CallForm& CallForms::add(const OperatorCall& call, const Found& found) {
  if (!found.is_comparable || count_ == kMost) return *new CallForm(call);
  if (2 * (count_ + 1) > table_.size()) {
    const auto old = std::exchange(table_, std::vector<CallForm*>(2 * table_.size()));
    for (CallForm* const form : old) {
      if (form != nullptr) put(*form);
    }
  }
  auto* const form = new CallForm(call);
  form->hash = found.hash;
  form->users = 1;
  put(*form);
  ++count_;
  return *form;
}

void CallForms::put(CallForm& form) {
  const std::size_t mask = table_.size() - 1;
  std::size_t place = form.hash & mask;
  while (table_[place] != nullptr) place = (place + 1) & mask;
  table_[place] = &form;
}

std::string RecordedCall::name() const {
  if (form_->function != nullptr) return form_->function->name();
  const auto& schema = form_->op.schema();
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

namespace {

// `inside`: the generators that the kernel's own calls draw from, if there are any.
void call_again(const CallForm& form, std::vector<c10::IValue>& stack,
                const std::vector<at::Generator>* inside) {
  const AmbientScope ambient(form.ambient);
  const c10::AutoGradMode grad_mode(form.grad_mode);
  // The operator's own kernel for autocast had its say at first, and what its other kernels call
  // may be cast.
  const c10::DispatchKeySet casts =
      facts_of(form.op).casts ? c10::DispatchKeySet() : form.ambient.autocast_keys();
  const BackendsOnly below(casts);
  std::optional<DrawsAgain> draws;
  if (inside != nullptr) draws.emplace(*inside);
  const KernelMayCatch kernel;
  form.op.callBoxed(stack);
  kernel.rethrow();
}

}  // namespace

std::vector<c10::IValue> RecordedCall::run(
    const std::function<c10::Storage(std::size_t)>& storage_of,
    const std::vector<at::Generator>& before) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(form_->slots.size());
  for (std::size_t i = 0; i < form_->slots.size(); ++i) {
    const CallForm::Slot& slot = form_->slots[i];
    c10::Storage storage = storage_of(i);
    tensors.push_back(slot.same_as == CallForm::kNoSlot
                          ? slot.form.on(std::move(storage))
                          : tensors[static_cast<std::size_t>(slot.same_as)]);
  }
  if (form_->function != nullptr) return (*form_->function)(std::move(tensors));
  std::vector<c10::IValue> stack;
  stack.reserve(form_->arguments.size());
  for (const c10::IValue& argument : form_->arguments) {
    if (argument.isTensorList()) {
      stack.emplace_back(argument.toTensorList().copy());
    } else if (argument.isOptionalTensorList()) {
      stack.emplace_back(argument.toOptionalTensorList().copy());
    } else {
      stack.push_back(argument);
    }
  }
  for (std::size_t i = 0; i < form_->slots.size(); ++i) {
    const CallForm::Slot& slot = form_->slots[i];
    at::Tensor& tensor = tensors[i];
    c10::IValue& argument = stack[slot.argument];
    // Moved: kernels may ask how many have an argument.
    if (slot.element < 0) {
      argument = std::move(tensor);
    } else if (argument.isTensorList()) {
      argument.toTensorList().set(static_cast<std::size_t>(slot.element), std::move(tensor));
    } else {
      argument.toOptionalTensorList().set(static_cast<std::size_t>(slot.element),
                                          std::move(tensor));
    }
  }
  const std::int16_t generator =
      before.empty() ? OperatorFacts::kNone : facts_of(form_->op).generator;
  if (generator != OperatorFacts::kNone) {
    stack[static_cast<std::size_t>(generator)] = before.front().clone();
  }
  const bool draws_inside = !before.empty() && generator == OperatorFacts::kNone;
  const auto call = [&] { call_again(*form_, stack, draws_inside ? &before : nullptr); };
  if (form_->ambient.needs_another_thread()) {
    const auto limits = state_of_limits();
    std::async(std::launch::async, [&] {
      const ThreadStateScope unseen(limits);
      call();
    }).get();
  } else {
    call();
  }
  return stack;
}

}  // namespace reprise::libtorch
