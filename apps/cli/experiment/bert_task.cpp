#include "apps/cli/experiment/bert_task.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>

namespace reprise::app {

namespace {

// Of a hundred words to guess: so many become the mask, and so many more another token.
constexpr std::size_t kMaskedShare = 80, kReplacedShare = 10;

}  // namespace

models::BertOptions bert_shape(const TaskOptions& options) {
  models::BertOptions bert = options.full_size
                                 ? models::bert_base()
                                 : models::BertOptions{.layers = 8,
                                                       .width = 96,
                                                       .heads = 4,
                                                       .context = 128,
                                                       .vocabulary = Vocabulary::bytes().size()};
  bert.layers = options.layers.value_or(bert.layers);
  bert.width = options.width.value_or(bert.width);
  bert.heads = options.heads.value_or(bert.heads);
  bert.context = options.context.value_or(bert.context);
  bert.dropout = options.dropout;
  bert.fused_attention = options.fused_attention;
  models::check(bert);
  if (bert.context < kLeastBertContext) {
    throw UsageError(fmt::format(
        "context is {}; of bert it must be at least {}, since a special token is at each end",
        bert.context, kLeastBertContext));
  }
  return bert;
}

std::string describe(const models::BertOptions& shape) {
  return fmt::format("BERT, {} layers of width {}, {} heads, context {}", shape.layers, shape.width,
                     shape.heads, shape.context);
}

void mask_words(std::vector<std::int64_t>& tokens, std::vector<std::int64_t>& targets,
                std::size_t begin, std::size_t end, std::size_t count, std::int64_t vocabulary,
                Draws& draws) {
  for (const std::size_t place : sample(end - begin, count, draws)) {
    std::int64_t& token = tokens[begin + place];
    targets[begin + place] = token;
    const std::size_t of_hundred = draws.below(100);
    if (of_hundred < kMaskedShare) {
      token = Vocabulary::kMask;
    } else if (of_hundred < kMaskedShare + kReplacedShare) {
      const auto others = static_cast<std::size_t>(vocabulary - Vocabulary::kSpecialTokens);
      token = Vocabulary::kSpecialTokens + static_cast<std::int64_t>(draws.below(others));
    }
  }
}

EncodedText encode_texts(std::vector<std::int64_t> first, std::vector<std::int64_t> second,
                         std::int64_t context) {
  const auto whole = static_cast<std::size_t>(context);
  const std::size_t special = second.empty() ? 2 : 3;
  const std::size_t room = whole - special;
  while (first.size() + second.size() > room) {
    auto& longer = first.size() >= second.size() ? first : second;
    const auto& shorter = first.size() >= second.size() ? second : first;
    // Down to the other's length at once, and from there each in turn.
    const std::size_t over = first.size() + second.size() - room;
    longer.resize(longer.size() - std::clamp<std::size_t>(longer.size() - shorter.size(), 1, over));
  }
  EncodedText text;
  text.tokens.push_back(Vocabulary::kClass);
  text.tokens.insert(text.tokens.end(), first.begin(), first.end());
  text.tokens.push_back(Vocabulary::kSeparator);
  text.segments.assign(text.tokens.size(), 0);
  if (special == 3) {
    text.tokens.insert(text.tokens.end(), second.begin(), second.end());
    text.tokens.push_back(Vocabulary::kSeparator);
    text.segments.resize(text.tokens.size(), 1);
  }
  text.tokens.resize(whole, Vocabulary::kPadding);
  text.segments.resize(whole, 0);
  return text;
}

}  // namespace reprise::app
