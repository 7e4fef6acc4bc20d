// How an error of reprise leaves what the program called: an operator, or a function of autograd's
// graph. A language that hosts LibTorch may give the error a form of its own: LibTorch's Python
// binding turns an unknown one into a RuntimeError.
#pragma once

#include <reprise/error.h>

#include <utility>

namespace reprise::libtorch {

// Called in a catch block for an error of reprise that leaves an outermost call, on any thread.
// Throws the error that the caller gets. If it returns, the error itself goes on.
using ErrorTranslator = void (*)();

// Null takes it away. No step may be open on any thread.
void set_error_translator(ErrorTranslator translator);

// While it lives, this thread is inside an operator call. Errors there keep their types, for
// callers that catch them.
class ErrorsStayInside {
 public:
  ErrorsStayInside();
  ~ErrorsStayInside();
  ErrorsStayInside(const ErrorsStayInside&) = delete;
  ErrorsStayInside& operator=(const ErrorsStayInside&) = delete;
};

// In a catch block, after the call has been handled.
void translate_leaving_error();

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
