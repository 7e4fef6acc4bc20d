#include "apps/cli/experiment/findings.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <algorithm>
#include <system_error>

#include "apps/cli/experiment/findings_claims.h"
#include "apps/cli/experiment/findings_figures.h"
#include "apps/cli/experiment/findings_tables.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/atomic_file.h"

namespace reprise::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* kColumnsText =
    "The peak is the most of all steps, above what is live before a step, and *fits* compares it "
    "with the budget in every step. A step's time is the median over steps; figures are means over "
    "seeds, with 95 % intervals by Student's t in brackets. *× none* is the geometric mean of the "
    "quotients of runs with the same seed. *Recomputed* is the part of the time that went into "
    "running things again, of all steps but the first, in which a method also measures what it "
    "plans with. p-values are two-sided, of paired t-tests over seeds beside "
    "`uniform` and `none` (of the logarithms of times, and of validation losses), corrected by "
    "Holm's procedure for all of the model's; where all losses are the same there is nothing to "
    "test.";

// A paragraph in lines.
std::string wrapped(std::string_view text) {
  constexpr std::size_t kWidth = 118;
  std::string lines;
  while (text.size() > kWidth) {
    const std::size_t space = text.rfind(' ', kWidth);
    if (space == text.npos) break;
    lines += std::string(text.substr(0, space)) + "\n";
    text.remove_prefix(space + 1);
  }
  return lines + std::string(text) + "\n";
}

std::string setting_text(const nlohmann::json& value) {
  return escape(value.is_string() ? value.get<std::string>() : value.dump());
}

// All but what the opening sentence says; objects as a line an entry.
std::string settings_list(const nlohmann::json& settings) {
  std::string text;
  for (const auto& [name, value] : settings.items()) {
    if (name == "command" || name == "date" || name == "machine") continue;
    if (!value.is_object()) {
      text += fmt::format("- {}: {}\n", escape(name), setting_text(value));
      continue;
    }
    for (const auto& [of, entry] : value.items()) {
      text += fmt::format("- {} of {}: {}\n", escape(name), escape(of), setting_text(entry));
    }
  }
  return text;
}

// PGAC's methods, the proposal's own first.
std::vector<std::string> judged_methods(const Runs& runs) {
  std::vector<std::string> methods = {"pgac:influence"};
  for (const RunFile& run : runs.runs) {
    const bool is_new = std::ranges::find(methods, run.method) == methods.end();
    if (run.method.starts_with("pgac:") && !run.is_ablation() && is_new) {
      methods.push_back(run.method);
    }
  }
  return methods;
}

std::string expectations_text(const Runs& runs) {
  std::string text = "## What was expected\n\n" + wrapped(kVerdictRule);
  for (const std::string& method : judged_methods(runs)) {
    text += fmt::format("\n### `{}`\n\n{}", method, expectation_table(runs, method));
  }
  return text;
}

// Over all seeds, of the methods whose gradients must be the plain step's.
std::string exactness_text(const Runs& runs, const std::string& model) {
  const auto none = runs.of(model, "none");
  LossDifferences sum;
  for (const std::string& method : runs.methods(model)) {
    const auto ours = runs.of(model, method);
    if (method == "none" || ours.empty() || !ours[0]->is_exact) continue;
    const LossDifferences found = loss_differences(ours, none);
    sum.differing += found.differing;
    sum.compared += found.compared;
  }
  if (sum.compared == 0) return "No exact method could be compared with `none`, step by step.\n";
  return fmt::format(
      "Exact methods, ablations among them: {} of {} steps have a loss that is not bitwise that of "
      "`none`.\n",
      sum.differing, sum.compared);
}

std::string link_to(const std::string& folder, const Picture& picture) {
  // A name with spaces or brackets is no link without these.
  return fmt::format("![{}](<{}/{}>)\n", picture.text, folder, picture.file);
}

std::string failures_text(const Runs& runs) {
  std::string text;
  for (const RunFile& run : runs.runs) {
    if (run.failure.empty()) continue;
    text += fmt::format("- {}, `{}`, seed {}, after {} steps: {}\n", run.model, run.method,
                        run.seed, run.steps.size(), escape(run.failure));
  }
  if (!text.empty()) text = "\n## Runs that failed\n\n" + text;
  if (runs.cut > 0) {
    text += fmt::format("\n{} run(s) were cut before their end, and do not count.\n", runs.cut);
  }
  return text;
}

void write_whole(const fs::path& path, const std::string& text, const char* option) {
  AtomicFile file(path, option);
  file.write(text);
  file.take_place();
}

}  // namespace

Findings findings_of(const Runs& runs, const std::string& pictures) {
  Findings findings;
  std::string& text = findings.markdown;
  text = fmt::format("# Findings\n\n`{}`, {}: {}. {} runs.\n\n{}\n",
                     setting_text(runs.settings["command"]), setting_text(runs.settings["date"]),
                     setting_text(runs.settings["machine"]), runs.runs.size(),
                     settings_list(runs.settings));
  text += expectations_text(runs);
  text += "\n## Methods\n\n" + wrapped(kColumnsText);
  std::string ablations;
  for (const std::string& model : runs.models()) {
    const MethodTables tables = method_tables(runs, model);
    text += fmt::format("\n### {}\n\n{}\n{}\n{}", model, tables.cost, tables.quality,
                        exactness_text(runs, model));
    for (Picture& picture : pictures_of(runs, model)) {
      text += "\n" + link_to(pictures, picture);
      findings.pictures.push_back(std::move(picture));
    }
    const std::string varied = ablation_table(runs, model);
    if (!varied.empty()) ablations += fmt::format("\n### {}, varied\n\n{}", model, varied);
  }
  if (!ablations.empty()) text += "\n## Ablations\n" + ablations;
  text += failures_text(runs);
  return findings;
}

void write_findings(const fs::path& folder, const fs::path& page, const char* option) {
  const Runs runs = read_runs(folder);
  if (runs.runs.empty()) {
    throw UsageError(fmt::format("{} has no complete run ({} were cut); let the experiment go on",
                                 escape(folder.string()), runs.cut));
  }
  AtomicFile file(page, option);
  const std::string name = page.stem().string() + "-pictures";
  const Findings findings = findings_of(runs, name);
  const fs::path pictures = page.parent_path() / name;
  std::error_code error;
  if (!findings.pictures.empty()) fs::create_directories(pictures, error);
  if (error) {
    throw UsageError(fmt::format("{}: cannot make the folder {}: {}; give another place", option,
                                 escape(pictures.string()), error.message()));
  }
  for (const Picture& picture : findings.pictures) {
    write_whole(pictures / picture.file, picture.svg, option);
  }
  file.write(findings.markdown);
  file.take_place();
}

}  // namespace reprise::app
