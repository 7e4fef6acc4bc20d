// What `scripts/setup --experiments` has installed: texts of the distribution, texts with labels,
// and handwritten digits.
//
// The folder is $REPRISE_EXPERIMENT_DATA, or else $XDG_DATA_HOME/reprise/experiments, or else
// $HOME/.local/share/reprise/experiments. Its file `manifest.tsv` has a record for each file or
// folder of data: the kind (text, labels or digits), the path, relative to that folder or absolute,
// and in words where it is from.
#pragma once

#include <string>
#include <vector>

namespace reprise::app {

struct InstalledData {
  struct Source {
    std::string path, origin;
  };
  std::string folder;  // where it is looked for; empty if the environment names none
  std::vector<Source> text, labels, digits;
};

// Nothing but the folder where there is no manifest. Throws UsageError if REPRISE_EXPERIMENT_DATA
// names a folder without one; "FILE:LINE: ..." for a record that is not as above or names a path
// at which there is nothing.
InstalledData find_installed_data();

// "run scripts/setup --experiments", and where it would put the data: the end of error texts.
std::string installed_data_remedy(const InstalledData& data);

}  // namespace reprise::app
