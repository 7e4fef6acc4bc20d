// The findings of an experiment, written from what it left in its folder (findings_runs.h): a page
// of Markdown with tables, and pictures beside it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/cli/experiment/findings_pictures.h"
#include "apps/cli/experiment/findings_runs.h"

namespace reprise::app {

struct Findings {
  std::string markdown;
  std::vector<Picture> pictures;
};

// `pictures` is the folder that links lead to. The same runs give the same text.
Findings findings_of(const Runs& runs, const std::string& pictures);

// Reads the folder, and writes the page and, into a folder beside it with the name of the page and
// "-pictures", the pictures. Throws UsageError as read_runs(), if no run is complete, and, naming
// `option`, if there is no writing to that place; Error if writing fails. What was there stays
// until the page is whole.
void write_findings(const std::filesystem::path& folder, const std::filesystem::path& page,
                    const char* option);

}  // namespace reprise::app
