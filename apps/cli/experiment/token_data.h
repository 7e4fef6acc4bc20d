// Text as tokens, in two parts, for the tasks that guess words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/cli/experiment/task.h"
#include "apps/cli/experiment/vocabulary.h"

namespace reprise::app {

struct TokenData {
  Vocabulary vocabulary;
  std::vector<std::int64_t> training, validation;
  std::string description;        // what Task::data() says
  std::uint64_t fingerprint = 0;  // of both parts, as text
};

// The text that the options name, or what is installed, or that of the source tree. Of each path
// the last tenth is held out, unless the options name held-out data. words: 0: bytes as tokens;
// otherwise as many of the most frequent words of the training part. Throws UsageError as
// load_text() does, and unless both parts hold `least` tokens.
TokenData load_tokens(const TaskOptions& options, std::int64_t words, std::int64_t least);

}  // namespace reprise::app
