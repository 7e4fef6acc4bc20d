#include "apps/cli/experiment/vocabulary.h"

#include <algorithm>
#include <utility>

namespace reprise::app {

namespace {

constexpr std::int64_t kByteValues = 256;

// Locales are left out of it: the same text gives the same tokens everywhere.
bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_in_word(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c >= 0x80;
}
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

template <class F>
void for_each_word(std::string_view text, const F& f) {
  std::string word;
  for (std::size_t i = 0; i < text.size();) {
    if (is_space(static_cast<unsigned char>(text[i]))) {
      ++i;
      continue;
    }
    word.assign(1, lower(text[i]));
    const bool goes_on = is_in_word(static_cast<unsigned char>(text[i++]));
    while (goes_on && i < text.size() && is_in_word(static_cast<unsigned char>(text[i]))) {
      word += lower(text[i++]);
    }
    f(word);
  }
}

}  // namespace

Vocabulary Vocabulary::bytes() {
  Vocabulary vocabulary;
  vocabulary.size_ = kSpecialTokens + kByteValues;
  return vocabulary;
}

Vocabulary Vocabulary::words(std::string_view text, std::int64_t size) {
  std::unordered_map<std::string, std::int64_t> counts;
  for_each_word(text, [&](const std::string& word) { ++counts[word]; });
  std::vector<std::pair<std::string, std::int64_t>> sorted(counts.begin(), counts.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  Vocabulary vocabulary;
  vocabulary.of_words_ = true;
  vocabulary.size_ = kSpecialTokens;
  for (auto& [word, count] : sorted) {
    if (vocabulary.size_ >= size) break;
    vocabulary.words_.emplace(std::move(word), vocabulary.size_++);
  }
  return vocabulary;
}

std::vector<std::int64_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int64_t> tokens;
  if (!of_words_) {
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(kSpecialTokens + static_cast<unsigned char>(c));
    return tokens;
  }
  for_each_word(text, [&](const std::string& word) {
    const auto found = words_.find(word);
    tokens.push_back(found == words_.end() ? kUnknown : found->second);
  });
  return tokens;
}

}  // namespace reprise::app
