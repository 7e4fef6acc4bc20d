// Files that are either whole or not there: what a killed process leaves behind can always be read,
// and what a disk or a copy has damaged is recognised.
//
// Writing goes to a second file beside the first, which is flushed to the disk and then renamed
// over it; a seal in front of the contents holds their length and a hash (XXH3, 64 bits).
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

namespace reprise::app {

// The second file, which is there only while the first is replaced.
std::filesystem::path path_aside(const std::filesystem::path& path);

// Replaces the file in one step by the parts, joined. Throws Error, naming the path and the
// system's reason, if it cannot; the earlier file is then untouched, and nothing left beside it.
void replace_file(const std::filesystem::path& path, std::initializer_list<std::string_view> parts);

// The same, with the seal in front of the contents.
void write_sealed(const std::filesystem::path& path, std::string_view contents);

// Throws UsageError if the file cannot be read, is not a sealed file, is cut short or is changed.
// `remedy`: what the text says can be done about it; empty: that of a checkpoint.
std::string read_sealed(const std::filesystem::path& path, const std::string& remedy = "");

// Makes sure that files can be created in the folder, which is made if it is missing. Throws
// UsageError.
void require_writable_folder(const std::filesystem::path& folder);

}  // namespace reprise::app
