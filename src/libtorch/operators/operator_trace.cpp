// LibTorch calls observers as plain functions, so that the scopes that they work for are found
// through thread-local stacks. LibTorch hands a thread's observers to threads that work for it,
// where these stacks are empty and nothing is recorded.
#include "libtorch/operators/operator_trace.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

namespace reprise::libtorch {

namespace {

// Operators in progress. Not cleared when a scope closes: an observed operator takes its name off
// again even if its scope is gone by then.
thread_local std::vector<const char*> running;
thread_local std::size_t open_name_scopes = 0;
thread_local std::vector<OperatorTrace*> open_traces;

std::unique_ptr<at::ObserverContext> note_start(const at::RecordFunction& function) {
  running.push_back(function.name());
  return nullptr;
}

void note_end(const at::RecordFunction&, at::ObserverContext*) {
  if (!running.empty()) running.pop_back();
}

void describe(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "None";
    return;
  }
  out << c10::toString(tensor.scalar_type()) << '[';
  const char* separator = "";
  for (const c10::SymInt& size : tensor.sym_sizes()) {
    out << separator << size;
    separator = ", ";
  }
  out << ']';
  if (!tensor.is_cpu()) out << '@' << tensor.device();
}

void describe(std::ostream& out, const c10::IValue& value) {
  if (value.isTensor()) {
    describe(out, value.toTensor());
  } else if (value.isList()) {
    out << '[';
    const char* separator = "";
    for (const c10::IValue& element : value.toListRef()) {
      out << std::exchange(separator, ", ");
      describe(out, element);
    }
    out << ']';
  } else if (value.isString()) {
    out << '"' << value.toStringRef() << '"';
  } else if (value.isScalar() || value.isNone() || value.isSymInt() || value.isDevice()) {
    out << value;
  } else {
    out << value.tagKind();
  }
}

template <class Values>
std::string describe_all(const Values& values) {
  std::ostringstream out;
  const char* separator = "";
  for (const c10::IValue& value : values) {
    out << std::exchange(separator, ", ");
    describe(out, value);
  }
  return out.str();
}

std::string full_name(const at::RecordFunction& function) {
  auto name = function.operator_name();
  return name ? c10::toString(*name) : std::string(function.name());
}

}  // namespace

const char* current_operator() { return running.empty() ? "unknown" : running.back(); }

CurrentOperatorScope::CurrentOperatorScope() {
  if (open_name_scopes == 0) {
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(note_start, note_end).scopes({at::RecordScope::FUNCTION}));
  }
  ++open_name_scopes;
}

CurrentOperatorScope::~CurrentOperatorScope() {
  --open_name_scopes;
  if (handle_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle_);
}

// One pair of callbacks serves all traces of the thread; the outermost trace owns it.
struct OperatorTrace::Observer {
  // Where each open trace, outermost first, put the line of one call.
  struct Lines final : at::ObserverContext {
    std::vector<std::size_t> numbers;
  };

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
    if (open_traces.empty()) return nullptr;
    auto lines = std::make_unique<Lines>();
    std::string text = full_name(function) + '(' + describe_all(function.inputs()) + ')';
    for (OperatorTrace* trace : open_traces) {
      lines->numbers.push_back(trace->lines_.size());
      trace->lines_.push_back(std::string(2 * trace->depth_, ' ') + text);
      ++trace->depth_;
    }
    return lines;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    auto* lines = static_cast<Lines*>(context);
    if (lines == nullptr) return;
    std::string outputs = describe_all(function.outputs());
    // A trace that closed meanwhile was the innermost: those that are left stand where they stood.
    std::size_t count = std::min(lines->numbers.size(), open_traces.size());
    for (std::size_t i = 0; i < count; ++i) {
      --open_traces[i]->depth_;
      if (!outputs.empty()) open_traces[i]->lines_[lines->numbers[i]] += " -> " + outputs;
    }
  }
};

OperatorTrace::OperatorTrace() {
  open_traces.reserve(open_traces.size() + 1);  // so that nothing can fail after the registration
  if (open_traces.empty()) {
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(Observer::start, Observer::end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  open_traces.push_back(this);
}

OperatorTrace::~OperatorTrace() {
  open_traces.pop_back();
  if (handle_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle_);
}

}  // namespace reprise::libtorch
