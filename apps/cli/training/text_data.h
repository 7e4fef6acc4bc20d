// Text to train on, as bytes: a token is a byte, so that no vocabulary has to be fetched or built.
//
// Files are taken as they are; folders are searched for text files, in the order of their paths, so
// that the same files give the same data everywhere. What a run writes is no data of its own, for
// the resumed run must find the same. The last tenth is kept for validation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::app {

struct TextData {
  std::string training;
  std::string validation;
  std::size_t files = 0;
  std::string origin;             // "214 files of /usr/share/doc"
  std::uint64_t fingerprint = 0;  // XXH3 of all bytes: a resumed run must see the same
};

// Reads the named files and folders; none named: the text files of this repository where it was
// built, or else of the current folder. Of a folder, it takes files whose extension is known as one
// of prose or source code; without an extension, scripts and files named as README and LICENSE are.
// It leaves out of folders the files and folders `left_out`, links to folders, and what cannot be
// looked at. Throws UsageError, naming the path, for what is missing, unreadable, no regular file,
// binary (a NUL byte among the first 8000, as git decides) or without any text.
TextData load_text(const std::vector<std::string>& paths,
                   const std::vector<std::filesystem::path>& left_out = {});

// Throws UsageError, naming the size that is needed, unless both parts hold a sequence of `context`
// tokens and its target.
void check_context(const TextData& data, std::int64_t context);

}  // namespace reprise::app
