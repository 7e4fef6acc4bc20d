// What was expected of PGAC before anybody had measured it, and what came out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/experiment/findings_figures.h"

namespace reprise::app {

enum class FindingsVerdict { kHolds, kRefuted, kNotSettled, kNotMeasurable };

std::string_view text_of(FindingsVerdict verdict);

// An expectation, measured on one model.
struct Expectation {
  std::string claim;     // "recomputes less than `uniform`"
  std::string expected;  // "15 to 30 %"
  OverSeeds measured;    // the gain, as a part of the baseline's figure; NaN where there is none
  FindingsVerdict verdict = FindingsVerdict::kNotMeasurable;
  std::string reason;
};

// How verdicts come about, in a paragraph of Markdown.
extern const std::string_view kVerdictRule;

// The five expectations of `method` on `model`, beside `uniform`, `dtr` and `none`.
std::vector<Expectation> expectations_of(const Runs& runs, const std::string& model,
                                         const std::string& method);

}  // namespace reprise::app
