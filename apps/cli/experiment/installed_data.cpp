#include "apps/cli/experiment/installed_data.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/cli/experiment/delimited.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kManifestFields = 3;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string default_data_folder() {
  if (const std::string data = environment("XDG_DATA_HOME"); !data.empty()) {
    return data + "/reprise/experiments";
  }
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.local/share/reprise/experiments";
}

void add_source(const Record& record, const fs::path& manifest, InstalledData& data) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(fmt::format("{}:{}: {}; run scripts/setup --experiments again",
                                 manifest.string(), record.line, what));
  };
  if (record.fields.size() != kManifestFields) {
    refuse(fmt::format("{} fields instead of kind, path and origin", record.fields.size()));
  }
  const std::string& kind = record.fields[0];
  const fs::path path = manifest.parent_path() / record.fields[1];
  std::error_code error;
  if (!fs::exists(path, error)) refuse(fmt::format("there is no {}", path.string()));
  const InstalledData::Source source{.path = path.string(), .origin = record.fields[2]};
  if (kind == "text") return data.text.push_back(source);
  if (kind == "labels") return data.labels.push_back(source);
  if (kind == "digits") return data.digits.push_back(source);
  refuse(fmt::format("'{}' is no kind of data; it is text, labels or digits", kind));
}

}  // namespace

InstalledData find_installed_data() {
  const std::string named = environment("REPRISE_EXPERIMENT_DATA");
  InstalledData data{.folder = named.empty() ? default_data_folder() : named,
                     .text = {},
                     .labels = {},
                     .digits = {}};
  if (data.folder.empty()) return data;
  const fs::path manifest = fs::path(data.folder) / "manifest.tsv";
  std::error_code error;
  if (!fs::exists(manifest, error)) {
    if (named.empty()) return data;
    throw UsageError(fmt::format(
        "REPRISE_EXPERIMENT_DATA is {}, which has no manifest.tsv; run scripts/setup --experiments "
        "with the same variable, or unset it",
        named));
  }
  for (const Record& record : read_delimited(manifest)) add_source(record, manifest, data);
  return data;
}

std::string installed_data_remedy(const InstalledData& data) {
  if (data.folder.empty()) {
    return "set HOME or REPRISE_EXPERIMENT_DATA, and run scripts/setup --experiments";
  }
  return fmt::format("run scripts/setup --experiments, which installs some in {}", data.folder);
}

}  // namespace reprise::app
