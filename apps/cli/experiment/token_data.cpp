#include "apps/cli/experiment/token_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include "apps/cli/experiment/fingerprint.h"
#include "apps/cli/experiment/installed_data.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/training/text_data.h"

namespace reprise::app {

namespace {

constexpr const char* kTextOption = "--text";

struct Texts {
  std::string training, validation;
  std::vector<std::string> origins;
};

// Path by path, so that each is held out in part.
Texts load_texts(const std::vector<std::string>& paths, bool hold_out) {
  Texts texts;
  for (const std::string& path : paths) {
    TextData data = load_text({path}, {}, kTextOption);
    texts.training += data.training;
    (hold_out ? texts.validation : texts.training) += data.validation;
    texts.origins.push_back(std::move(data.origin));
  }
  return texts;
}

// Where no path is given.
Texts load_installed_texts(bool hold_out) {
  const InstalledData installed = find_installed_data();
  if (installed.text.empty()) {
    TextData data = load_text({}, {}, kTextOption);
    if (!hold_out) data.training += data.validation;
    return {.training = std::move(data.training),
            .validation = hold_out ? std::move(data.validation) : "",
            .origins = {std::move(data.origin)}};
  }
  std::vector<std::string> paths, origins;
  for (const InstalledData::Source& source : installed.text) {
    paths.push_back(source.path);
    origins.push_back(source.origin);
  }
  Texts texts = load_texts(paths, hold_out);
  texts.origins = std::move(origins);
  return texts;
}

std::uint64_t fingerprint_of(const Texts& texts) {
  Fingerprint fingerprint;
  fingerprint.add(texts.training);
  fingerprint.add(texts.validation);
  return fingerprint.value();
}

void require_tokens(const char* part, std::size_t count, std::int64_t least) {
  if (count >= static_cast<std::size_t>(least)) return;
  throw UsageError(fmt::format(
      "the text for {} has {} tokens, and one sequence needs {}; give longer data, or a shorter "
      "context",
      part, count, least));
}

}  // namespace

TokenData load_tokens(const TaskOptions& options, std::int64_t words, std::int64_t least) {
  const bool hold_out = options.validation_data.empty();
  Texts texts =
      options.data.empty() ? load_installed_texts(hold_out) : load_texts(options.data, hold_out);
  if (!hold_out) texts.validation = load_texts(options.validation_data, false).training;
  const Vocabulary vocabulary =
      words == 0 ? Vocabulary::bytes() : Vocabulary::words(texts.training, words);
  TokenData data{.vocabulary = vocabulary,
                 .training = vocabulary.encode(texts.training),
                 .validation = vocabulary.encode(texts.validation),
                 .description = {},
                 .fingerprint = fingerprint_of(texts)};
  require_tokens("training", data.training.size(), least);
  require_tokens("validation", data.validation.size(), least);
  data.description = fmt::format(
      "{} {} of {}, {} more held out", format_count(static_cast<double>(data.training.size())),
      words == 0 ? "bytes" : fmt::format("words ({} different)", vocabulary.size()),
      fmt::join(texts.origins, "; "), format_count(static_cast<double>(data.validation.size())));
  return data;
}

}  // namespace reprise::app
