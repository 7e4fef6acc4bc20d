// How many bytes of memory this process may use at most, whoever else uses them.
#pragma once

#include <cstdint>
#include <filesystem>

namespace reprise {

// The machine's physical memory, or the limit of the process's control group or of one above it
// (version 1 or 2), where that is smaller. `root`: where /proc and /sys are looked for.
std::int64_t machine_memory(const std::filesystem::path& root = "/");

}  // namespace reprise
