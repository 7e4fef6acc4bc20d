// How an error of reprise leaves the operator that the program called. A language that hosts LibTorch
// may give the error a form of its own: LibTorch's Python binding turns an unknown one into a
// RuntimeError.
#pragma once

#include "libtorch/memory/limited_work.h"

namespace reprise::libtorch {

// Called in a catch block for an error of reprise that leaves an outermost operator call, on any
// thread. Throws the error that the caller gets. If it returns, the error itself goes on.
using ErrorTranslator = void (*)();

// Null takes it away. No step may be open on any thread.
void set_error_translator(ErrorTranslator translator);

// While it lives, this thread handles an operator call. Errors inside of calls keep their types, for
// callers that catch them.
class InsideOperator {
 public:
  InsideOperator();
  ~InsideOperator();
  InsideOperator(const InsideOperator&) = delete;
  InsideOperator& operator=(const InsideOperator&) = delete;

 private:
  AccountedWork accounted_;
};

// In a catch block, after the call has been handled.
void translate_leaving_error();

}  // namespace reprise::libtorch
