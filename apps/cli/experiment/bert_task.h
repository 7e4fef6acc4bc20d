// What BERT's two tasks share: its shape by the options, and texts as its input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/cli/experiment/task.h"
#include "apps/cli/experiment/vocabulary.h"
#include "apps/cli/training/draws.h"
#include "models/bert.h"

namespace reprise::app {

inline constexpr std::int64_t kBertBatch = 4, kFullBertBatch = 8;

// Checked but for the classes, which are 0. The smallest context that the tasks can work with is
// kLeastBertContext: a special token at each end and one between.
inline constexpr std::int64_t kLeastBertContext = 3;
models::BertOptions bert_shape(const TaskOptions& options);

// "BERT, 8 layers of width 96, 4 heads, context 128"
std::string describe(const models::BertOptions& shape);

// Words to guess in one sequence of int64 tokens, in place: so many of the places `begin` to `end`
// - 1, of which 80 % become kMask, 10 % any token of the vocabulary, and 10 % stay as they are
// (Devlin et al., section 3.1). At those places `targets` gets the token; elsewhere it is left.
void mask_words(std::vector<std::int64_t>& tokens, std::vector<std::int64_t>& targets,
                std::size_t begin, std::size_t end, std::size_t count, std::int64_t vocabulary,
                Draws& draws);

// [CLS] first [SEP], and, if there is one, second [SEP], filled up with padding to `context`
// tokens. What is too long is cut at its end, the longer of the two first. segments: 1 from the
// second's first token to its [SEP], else 0.
struct EncodedText {
  std::vector<std::int64_t> tokens, segments;
};
EncodedText encode_texts(std::vector<std::int64_t> first, std::vector<std::int64_t> second,
                         std::int64_t context);

}  // namespace reprise::app
