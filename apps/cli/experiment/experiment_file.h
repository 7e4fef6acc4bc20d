// experiment.json: what an experiment is and what its plain steps took, so that one that is gone on
// with is the same.
#pragma once

#include <reprise/bytes.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/experiment/settings.h"

namespace reprise::app {

class ExperimentFile {
 public:
  // Reads that of the settings' folder, or measures a plain step of each model and writes it.
  // Throws UsageError for a file that is of another experiment, naming the first setting that
  // differs, whether the settings have it or the file; and as make_task() does.
  ExperimentFile(const ExperimentSettings& settings, const std::string& command);

  // Above what is live before the step.
  Bytes plain_peak(const std::string& model) const;

  // Throws UsageError unless the data of these models is what it was when the file was written.
  void check_data(const ExperimentSettings& settings, const std::vector<std::string>& models) const;

 private:
  void read(const nlohmann::ordered_json& wanted, const std::vector<std::string>& models);

  std::filesystem::path path_;
  nlohmann::ordered_json json_;
  bool is_new_ = false;
};

}  // namespace reprise::app
