// Text as numbers: a token a byte, or a token a word of the most frequent ones.
//
// The first numbers are those of the special tokens, the same in every vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace reprise::app {

class Vocabulary {
 public:
  static constexpr std::int64_t kPadding = 0, kUnknown = 1, kClass = 2, kSeparator = 3, kMask = 4;
  static constexpr std::int64_t kSpecialTokens = 5;

  // Byte b is token kSpecialTokens + b.
  static Vocabulary bytes();
  // The most frequent words of a text, such that there are at most `size` tokens; at equal
  // frequency the first in the order of bytes. A word is a run of letters and digits, in lower case
  // (of ASCII; bytes of other letters count as letters); every other character but white space is a
  // word by itself. What is not among them is kUnknown.
  static Vocabulary words(std::string_view text, std::int64_t size);

  std::vector<std::int64_t> encode(std::string_view text) const;
  std::int64_t size() const { return size_; }

 private:
  std::int64_t size_ = 0;
  bool of_words_ = false;
  std::unordered_map<std::string, std::int64_t> words_;
};

}  // namespace reprise::app
