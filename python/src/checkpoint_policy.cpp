#include "checkpoint_policy.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint_call.h"
#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_schemas.h"
#include "selective/policy_rule.h"

namespace torch::jit {
// NOLINTNEXTLINE(readability-identifier-naming)
TORCH_PYTHON_API py::object toPyObject(c10::IValue ivalue);
}  // namespace torch::jit

namespace reprise::python {
namespace {

using detail::Verdict;

// An operator as Python knows it. Never freed: operators stay.
struct KnownOperator {
  const libtorch::OperatorFacts* facts;
  PyObject* overload;
};

const libtorch::OperatorFacts& facts_of(const c10::FunctionSchema& schema) {
  return libtorch::facts_of(c10::Dispatcher::singleton().findSchemaOrThrow(
      schema.name().c_str(), schema.overload_name().c_str()));
}

// torch.ops.NAMESPACE.NAME.OVERLOAD. Under the interpreter's lock.
const KnownOperator& known(const c10::FunctionSchema& schema) {
  static auto* const operators = new std::unordered_map<const c10::FunctionSchema*, KnownOperator>;
  const auto found = operators->find(&schema);
  if (found != operators->end()) return found->second;
  const std::string& name = schema.name();
  const std::size_t colon = name.find("::");
  const std::string overload = schema.overload_name().empty() ? "default" : schema.overload_name();
  py::object object = py::module_::import("torch").attr("ops");
  object = object.attr(name.substr(0, colon).c_str()).attr(name.substr(colon + 2).c_str());
  object = object.attr(overload.c_str());
  return operators->try_emplace(&schema, KnownOperator{&facts_of(schema), object.release().ptr()})
      .first->second;
}

CheckpointPolicy preferred(CheckpointPolicy policy) {
  if (policy == CheckpointPolicy::kMustSave) return CheckpointPolicy::kPreferSave;
  if (policy == CheckpointPolicy::kMustCpuOffload) return CheckpointPolicy::kPreferCpuOffload;
  return policy;
}

// A tensor in host memory is where offloading would move it.
CheckpointPolicy where_it_is(CheckpointPolicy policy, at::ArrayRef<c10::IValue> results) {
  const bool offloads =
      policy == CheckpointPolicy::kMustCpuOffload || policy == CheckpointPolicy::kPreferCpuOffload;
  if (!offloads) return policy;
  const bool in_host_memory = std::any_of(results.begin(), results.end(), [](const auto& result) {
    return (result.isTensor() && result.toTensor().defined() && result.toTensor().is_cpu()) ||
           (result.isTensorList() && !result.toTensorList().empty() &&
            result.toTensorList().get(0).is_cpu());
  });
  if (!in_host_memory) return policy;
  return policy == CheckpointPolicy::kMustCpuOffload ? CheckpointPolicy::kMustSave
                                                     : CheckpointPolicy::kPreferSave;
}

struct ListRule final : detail::PolicyRule {
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    return *by_operator(context.schema());
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema& schema) const override {
    const auto found = operators.find(&schema);
    return Verdict{found == operators.end() ? CheckpointPolicy::kPreferRecompute : found->second};
  }
  std::unordered_map<const c10::FunctionSchema*, CheckpointPolicy> operators;
};

// An argument as torch's dispatch modes see it: dtypes and the like are no numbers.
py::object object_of(const c10::IValue& value, const c10::Argument& argument) {
  const auto kind =
      argument.real_type()->kind() == c10::TypeKind::OptionalType
          ? argument.real_type()->castRaw<c10::OptionalType>()->getElementType()->kind()
          : argument.real_type()->kind();
  if (value.isInt() && kind == c10::TypeKind::ScalarTypeType) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(
        torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt()))));
  }
  if (value.isInt() && kind == c10::TypeKind::LayoutType) {
    return py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(value.toInt()))));
  }
  if (value.isInt() && kind == c10::TypeKind::MemoryFormatType) {
    return py::reinterpret_borrow<py::object>(
        torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt())));
  }
  return torch::jit::toPyObject(value);
}

bool is_default(const c10::IValue& value, const c10::Argument& argument) {
  const auto& fallback = argument.default_value();
  if (!fallback) return false;
  if (fallback->isNone() || value.isNone()) return fallback->isNone() && value.isNone();
  return !value.isTensor() && !fallback->isTensor() && value == *fallback;
}

// Asks a function of Python.
class FunctionRule final : public detail::PolicyRule {
 public:
  FunctionRule(const py::object& function, bool must, const py::object& context,
               const py::object& policies)
      : function_(Owned::borrowed(function.ptr())),
        context_(Owned::borrowed(context.ptr())),
        must_(must) {
    for (const char* name : {"MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE",
                             "MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD"}) {
      answers_.emplace_back(py::getattr(policies, name, py::none()).release().ptr());
    }
  }

  Verdict decide(const SelectiveCheckpointContext& context) const override {
    const py::gil_scoped_acquire locked;
    const KnownOperator& op = known(context.schema());
    const auto& writes = op.facts->writes;
    // A kept result cannot take the place of a write: such a call runs again.
    const bool writes_now = std::any_of(writes.begin(), writes.end(), [&](const auto& write) {
      return write.happens(context.arguments());
    });
    const CheckpointPolicy answer = ask(context, op);
    return {where_it_is(must_ && !writes_now ? answer : preferred(answer), context.results())};
  }

 private:
  CheckpointPolicy ask(const SelectiveCheckpointContext& context, const KnownOperator& op) const {
    try {
      return answer_of(call(context, op));
    } catch (py::error_already_set& error) {
      // On its way through the engine only this kind keeps its Python exception.
      error.restore();
      throw_python_error();
    }
  }

  py::object call(const SelectiveCheckpointContext& context, const KnownOperator& op) const {
    py::dict described;
    described["is_recompute"] = py::bool_(false);
    described["op_output"] = output_of(context);
    const auto& declared = context.schema().arguments();
    const auto arguments = context.arguments();
    // Trailing arguments that have their default are left out.
    std::size_t positional = 0;
    for (std::size_t i = 0; i < declared.size(); ++i) {
      if (!declared[i].kwarg_only() && !is_default(arguments[i], declared[i])) positional = i + 1;
    }
    py::tuple args(2 + positional);
    args[0] = py::handle(context_.get())(**described);
    args[1] = py::handle(op.overload);
    py::dict keywords;
    for (std::size_t i = 0; i < declared.size(); ++i) {
      if (i < positional) {
        args[2 + i] = object_of(arguments[i], declared[i]);
      } else if (declared[i].kwarg_only() && !is_default(arguments[i], declared[i])) {
        keywords[declared[i].name().c_str()] = object_of(arguments[i], declared[i]);
      }
    }
    auto answer = py::reinterpret_steal<py::object>(
        PyObject_Call(function_.get(), args.ptr(), keywords.ptr()));
    if (!answer) throw py::error_already_set();
    return answer;
  }

  static py::object output_of(const SelectiveCheckpointContext& context) {
    const auto results = context.results();
    if (results.empty()) return py::none();
    if (results.size() == 1) return torch::jit::toPyObject(results[0]);
    py::tuple all(results.size());
    for (std::size_t i = 0; i < results.size(); ++i) all[i] = torch::jit::toPyObject(results[i]);
    return all;
  }

  // Anything that does not say to save recomputes, as in torch.
  CheckpointPolicy answer_of(const py::object& answer) const {
    if (answer.is(py::bool_(true))) return CheckpointPolicy::kMustSave;
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      if (answer.ptr() == answers_[i].get()) return static_cast<CheckpointPolicy>(i);
    }
    return CheckpointPolicy::kPreferRecompute;
  }

  Owned function_, context_;
  bool must_;
  // In the order of CheckpointPolicy.
  std::vector<Owned> answers_;
};

OperatorPolicy as_policy(std::shared_ptr<const detail::PolicyRule> rule) {
  return detail::PolicyRuleAccess::policy_of(std::move(rule));
}

}  // namespace

OperatorPolicy policy_of_list(const py::list& overloads, bool must) {
  auto rule = std::make_shared<ListRule>();
  for (const py::handle overload : overloads) {
    const py::object schema = overload.attr("_schema");
    const auto name = schema.attr("name").cast<std::string>();
    const auto overload_name = schema.attr("overload_name").cast<std::string>();
    const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload_name.c_str());
    const bool writes = !libtorch::facts_of(handle).writes.empty();
    rule->operators.emplace(&handle.schema(), must && !writes ? CheckpointPolicy::kMustSave
                                                              : CheckpointPolicy::kPreferSave);
  }
  return as_policy(std::move(rule));
}

OperatorPolicy policy_of_function(const py::object& function, bool must, const py::object& context,
                                  const py::object& policies) {
  return as_policy(std::make_shared<FunctionRule>(function, must, context, policies));
}

}  // namespace reprise::python
