// How an error of reprise leaves the operator that the program called. A language that hosts LibTorch
// may give it a form of its own: LibTorch's Python binding turns what it does not know into a
// RuntimeError.
#pragma once

namespace reprise::libtorch {

// Called in a catch block for an error of reprise that is about to leave an outermost operator call,
// on any thread. Throws what the caller is to get; if it returns, the error itself goes on.
using ErrorTranslator = void (*)();

// Null takes it away. No step may be open on any thread.
void set_error_translator(ErrorTranslator translator);

}  // namespace reprise::libtorch
