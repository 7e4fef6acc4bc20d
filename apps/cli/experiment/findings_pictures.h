// The pictures of an experiment's findings.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/experiment/findings_runs.h"

namespace reprise::app {

struct Picture {
  std::string file;  // its name, without a folder
  std::string text;  // what it shows
  std::string svg;
};

// Of one model, those for which there are figures: the frontier of memory and time, losses, and of
// methods with a mask what it kept and, of one of them, what layers' influence was.
std::vector<Picture> pictures_of(const Runs& runs, const std::string& model);

}  // namespace reprise::app
