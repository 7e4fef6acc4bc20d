// LibTorch has no types for these errors: they are told by phrases of their texts.
#include "libtorch/meta/meta_errors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/StringUtil.h>
#include <reprise/error.h>

#include <algorithm>
#include <array>

#include "libtorch/meta/shape_table.h"

namespace reprise::libtorch {
namespace {

// The word before LibTorch's phrase, if the text has it: where it names the operator.
std::string word_before(std::string_view text, std::string_view phrase) {
  const std::size_t end = text.find(phrase);
  if (end == std::string_view::npos) return {};
  const std::size_t space = text.find_last_of(" \n'\"", end == 0 ? 0 : end - 1);
  const std::size_t start = space == std::string_view::npos ? 0 : space + 1;
  return std::string(text.substr(start, end - start));
}

std::string operator_without_kernel(std::string_view text) {
  const std::string op = word_before(text, ": attempted to run this operator with Meta tensors");
  return op.empty() ? word_before(text, "' with arguments from the 'Meta' backend") : op;
}

constexpr std::array<std::string_view, 5> kReadsMemory = {
    "cannot be called on meta tensors", "Cannot copy out of meta tensor",
    "data is not allocated yet", "Cannot access data pointer of",
    // Of packed sequences.
    "should be a 1D CPU int64 tensor"};

// Its results, or their sizes, are decided by what a tensor holds.
bool depends_on_values(const std::string& op) {
  const auto found = c10::Dispatcher::singleton().findSchema(operator_name(op));
  return found && (found->hasTag(at::Tag::data_dependent_output) ||
                   found->hasTag(at::Tag::dynamic_output_shape));
}

[[noreturn]] void refuse_values(const std::string& why) {
  throw UsageError(c10::str("the code reads values of a tensor, and meta tensors have none: ", why,
                            "; remove that read, take sizes from shapes, or measure a real step ",
                            "instead"));
}

}  // namespace

void explain_on_meta(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const std::string op = operator_without_kernel(text);
  if (op == "aten::_local_scalar_dense") refuse_values("item() is called");
  if (!op.empty() && depends_on_values(op))
    refuse_values("the result of " + op + " depends on them");
  if (!op.empty()) {
    throw UsageError(
        c10::str("the code calls ", op,
                 ", which has no kernel on meta tensors, so the sizes of its results ",
                 "are not known without running it; register a shape function for it, as ",
                 "docs/extending.md shows under \"A shape function\""));
  }
  const std::string sparse = word_before(text, "' with arguments from the 'SparseMeta' backend");
  if (!sparse.empty()) {
    throw UsageError(c10::str("the code calls ", sparse,
                              " on sparse tensors, whose shapes are not ",
                              "known without running it; make them dense (to_dense()), or measure ",
                              "a real step instead"));
  }
  const auto is_in_text = [&](std::string_view phrase) {
    return text.find(phrase) != std::string::npos;
  };
  if (is_in_text("have incompatible tensor type")) {
    throw UsageError(
        "the code puts a tensor without memory in place of another one's (set_data()); "
        "copy values in place (copy_()), or do it before the estimate");
  }
  if (std::ranges::any_of(kReadsMemory, is_in_text)) {
    refuse_values(text.substr(0, text.find('\n')));
  }
}

}  // namespace reprise::libtorch
