// Reading files that must be files: a device or a pipe would block or never end, and a library's
// stream tells neither the path nor the reason when reading fails.
#pragma once

#include <filesystem>
#include <string>

namespace reprise::app {

// Whether there is something at the path, which must then be a regular file or a link to one.
// Throws UsageError, naming path, reason and the remedy, if it is not or cannot be looked at.
bool regular_file_exists(const std::filesystem::path& path, const std::string& remedy);

// All bytes of the file. Throws UsageError in the same way, also for a file that is larger than the
// machine's memory.
std::string read_regular_file(const std::filesystem::path& path, const std::string& remedy);

}  // namespace reprise::app
