// The tables of an experiment's findings, as Markdown.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/experiment/findings_runs.h"

namespace reprise::app {

// Of one model, a row a method that is no ablation: memory and time; and what was learned.
struct MethodTables {
  std::string cost, quality;
};

// p-values in both, of step times and validation losses beside `uniform` and `none`, are corrected
// together by Holm's procedure.
MethodTables method_tables(const Runs& runs, const std::string& model);

// What was expected of `method`, a row an expectation and model.
std::string expectation_table(const Runs& runs, const std::string& method);

// A row an ablation, each below the method that it varies; empty without any.
std::string ablation_table(const Runs& runs, const std::string& model);

}  // namespace reprise::app
