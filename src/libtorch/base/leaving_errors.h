// How an error of reprise leaves what the program called: an operator, or a function of autograd's
// graph. A language that hosts LibTorch may give the error a form of its own: LibTorch's Python
// binding turns an unknown one into a RuntimeError.
#pragma once

#include <reprise/error.h>

#include <utility>

namespace reprise::libtorch {

struct HostLanguage {
  // Called in a catch block for an error of reprise that leaves an outermost call, on any thread.
  // Throws the error that the caller gets. If it returns, the error itself goes on.
  void (*translate_error)() = nullptr;
  // Called in a catch block. Whether the error is a BudgetError that was translated.
  bool (*is_budget_error)() = nullptr;
  // Tells apart which function of the language this thread runs; null if it runs none.
  const void* (*position)() = nullptr;
};

// No step may be open on any thread.
void set_host_language(const HostLanguage& language);

// While it lives, this thread is inside an operator call. Errors there keep their types, for
// callers that catch them, as long as these are no code of the host language: an operator may be
// written in it.
class ErrorsStayInside {
 public:
  ErrorsStayInside();
  ~ErrorsStayInside();
  ErrorsStayInside(const ErrorsStayInside&) = delete;
  ErrorsStayInside& operator=(const ErrorsStayInside&) = delete;

 private:
  const void* const position_before_;
};

// Whether code of the host language runs inside an operator call of this thread.
bool is_host_inside();

// In a catch block, after the call has been handled.
void translate_leaving_error();
// In a catch block.
bool is_translated_budget_error();

// Runs a function that LibTorch calls, whose errors leave to the program.
template <class F>
decltype(auto) with_leaving_errors(F&& function) {
  try {
    return std::forward<F>(function)();
  } catch (const Error&) {
    translate_leaving_error();
    throw;
  }
}

}  // namespace reprise::libtorch
