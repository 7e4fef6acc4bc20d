// A whole file as text, compressed or not.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>

namespace reprise::plan {

// Throws UsageError "cannot read WHAT FILE: reason", with `what` as "the trace", also for a text of
// more than `most` bytes.
std::string read_text_file(const std::filesystem::path& file, const std::string& what,
                           std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace reprise::plan
