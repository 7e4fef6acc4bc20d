// A container is bounded by its control group, and sees the whole machine in sysconf().
#include "core/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace reprise {

namespace {

namespace fs = std::filesystem;

// The number in the file; `otherwise` if there is none: no file, or "max".
std::int64_t limit_in(const fs::path& file, std::int64_t otherwise) {
  std::ifstream stream(file);
  std::string text;
  std::int64_t limit = 0;
  if (!(stream >> text)) return otherwise;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, limit);
  return error == std::errc() && stop == end && limit > 0 ? limit : otherwise;
}

// The group's limit counts, and that of every group above it. Inside a container the path may be
// the host's, and only the topmost is there.
std::int64_t least_limit(const fs::path& mount, std::string_view group, const char* file,
                         std::int64_t least) {
  fs::path path = fs::path(group).relative_path();
  for (;;) {
    least = std::min(least, limit_in(mount / path / file, least));
    if (path.empty()) return least;
    path = path.parent_path();
  }
}

}  // namespace

std::int64_t machine_memory(const fs::path& root) {
  std::int64_t least = std::int64_t{sysconf(_SC_PHYS_PAGES)} * std::int64_t{sysconf(_SC_PAGE_SIZE)};
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  // "0::/group" of version 2, "4:memory:/group" of version 1.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const std::string_view group = std::string_view(line).substr(second + 1);
    if (controllers.empty()) least = least_limit(mount, group, "memory.max", least);
    if (controllers == "memory") {
      least = least_limit(mount / "memory", group, "memory.limit_in_bytes", least);
    }
  }
  return least;
}

}  // namespace reprise
