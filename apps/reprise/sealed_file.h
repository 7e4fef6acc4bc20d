// Files that are either whole or not there: what a killed process leaves behind can always be read,
// and what a disk or a copy has damaged is recognised.
//
// Writing goes to a second file beside the first, which is flushed to the disk and then renamed
// over it; a seal in front of the contents holds their length and a hash (XXH3, 64 bits).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace reprise::app {

// Replaces the file in one step. Throws Error, naming the path and the system's reason, if it
// cannot; the earlier file is then untouched.
void write_sealed(const std::filesystem::path& path, std::string_view contents);

// Throws UsageError if the file cannot be read, is not a sealed file, is cut short or is changed.
std::string read_sealed(const std::filesystem::path& path);

// Makes sure that files can be created in the folder, which is made if it is missing. Throws
// UsageError.
void require_writable_folder(const std::filesystem::path& folder);

}  // namespace reprise::app
