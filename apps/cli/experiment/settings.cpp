#include "apps/cli/experiment/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "apps/cli/io/option_group.h"
#include "apps/cli/experiment/method.h"
#include "apps/cli/training/device.h"

namespace reprise::app {

namespace {

constexpr std::int64_t kMostSize = 1 << 20;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;

void refuse_unknown_models(const std::vector<std::string>& models) {
  const auto known = task_models();
  for (const std::string& model : models) {
    if (std::ranges::count(known, model) > 0) continue;
    throw UsageError(
        fmt::format("--models names '{}'; choose of {}", model, fmt::join(known, ", ")));
  }
}

void refuse_doubles(const char* option, std::vector<std::string> names) {
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return;
  throw UsageError(fmt::format("{} names '{}' twice; once is enough", option, *twice));
}

}  // namespace

const std::vector<std::string>& experiment_methods() {
  static const std::vector<std::string> methods = {
      "none",   "uniform",   "every-block",    "random",    "dtr",          "dtr-influence",
      "budget", "pgac:text", "pgac:influence", "pgac:cost", "pgac:product", "pgac:lossy"};
  return methods;
}

const std::vector<std::string>& usual_ablations() {
  static const std::vector<std::string> ablations = {
      "pgac:text,q=0.25",       "pgac:text,q=0.75",       "pgac:text,alpha=0",
      "pgac:text,alpha=0.99",   "pgac:text,gamma=linear", "pgac:text,gamma=cosine",
      "pgac:text,gamma=learned"};
  return ablations;
}

void bind(CLI::App& command, ExperimentSettings& settings) {
  OptionGroup what(command, "Experiment");
  what.text("name", "NAME", settings.name, "which experiment: pgac");
  what.path("--out", "FOLDER", settings.out,
            "keeps all that is measured, and what a killed experiment goes on from");
  what.path("--report", "FILE", settings.report,
            "Markdown with tables and pictures; report.md in the folder if not given");
  what.names("--models", settings.models, "all", "of gpt2, bert, vit");
  what.names(
      "--methods", settings.methods, "all",
      "of none, uniform, every-block, random, dtr, dtr-influence, budget, and PGAC as pgac:text, "
      "pgac:influence, pgac:cost, pgac:product, pgac:lossy");
  what.paths("--ablation", settings.ablations,
             "a PGAC method with other parameters, such as pgac:text,q=0.25,alpha=0.5 (also gamma, "
             "fill, search, far, error); the usual seven if not given");
  what.flag("--no-ablations", settings.without_ablations, "the methods alone");
  what.whole("--seeds", settings.seeds, {1, 1000}, "runs of each method; 3, or 2 with --quick");
  what.whole("--steps", settings.steps, {2, kMostSteps}, "of a run; 200, or 12 with --quick");
  what.real("--budget", settings.budget, {1e-9, 1},
            "bytes of every method, as a part of the plain step's peak above what is live before");
  what.real("--gradient-error", settings.gradient_error,
            {1e-9, 1e9},
            "the most relative error of gradients of pgac:lossy, as estimated");
  what.real("--learning-rate", settings.learning_rate, {0, 100},
            "of AdamW after a tenth of the steps, from where it falls along half a cosine");
  what.flag("--quick", settings.quick, "small runs that show that all of it works");
  what.flag("--full-size", settings.full_size, "BERT-Base, GPT-2 Medium, ViT-B/16");

  OptionGroup data(command, "Data (what scripts/setup --experiments installs, if not given)");
  data.paths("--text", settings.text, "a file or folder of text for gpt2 and bert");
  data.paths("--labelled", settings.labelled,
             "a CSV or TSV file of labelled texts: bert tells their classes instead");
  data.text("--text-column", "NAME", settings.columns.text, "of --labelled, or its number");
  data.text("--second-column", "NAME", settings.columns.second, "a second text of each example");
  data.text("--label-column", "NAME", settings.columns.label, "its class");
  data.paths("--images", settings.images,
             "a folder of pictures, a folder a class, or a table of digits, for vit");

  OptionGroup shape(command, "Models (small ones, if not given)");
  shape.whole("--batch", settings.batch, {1, kMostSize}, "sequences or pictures at once");
  shape.whole("--layers", settings.layers, {1, kMostSize}, "blocks");
  shape.whole("--width", settings.width, {1, kMostSize}, "of the residual stream");
  shape.whole("--heads", settings.heads, {1, kMostSize}, "of attention");
  shape.whole("--context", settings.context, {2, kMostSize},
              "tokens of a sequence, of gpt2 and bert");
  shape.whole("--image", settings.image, {1, kMostSize}, "pixels of a side, of vit");
  shape.whole("--patch", settings.patch, {1, kMostSize}, "pixels of a patch's side, of vit");
  shape.real("--dropout", settings.dropout, {0, 0.999999},
             "probability");

  OptionGroup machine(command, "Machine and output");
  machine.text("--device", "NAME", settings.device, "auto, cpu, cuda, cuda:1, ...");
  machine.whole("--threads", settings.threads,
                {1, 4 * std::int64_t{std::max(256U, std::thread::hardware_concurrency())}},
                "CPU threads");
  machine.whole("--save-every", settings.save_every, {1, 1 << 20},
                "seconds between two saves of a run under way");
  machine.flag("--json", settings.json, "print one JSON object instead of a table");
}

void complete(ExperimentSettings& settings) {
  if (settings.name != "pgac") {
    throw UsageError(settings.name.empty()
                         ? "which experiment? There is pgac: write `reprise experiment pgac`"
                         : fmt::format("there is no experiment '{}', only pgac", settings.name));
  }
  if (settings.out.empty()) {
    throw UsageError("--out FOLDER is missing; give the folder that keeps the experiment");
  }
  if (settings.without_ablations && !settings.ablations.empty()) {
    throw UsageError("--no-ablations and --ablation exclude each other; give one of them");
  }
  if (settings.models.empty()) settings.models = task_models();
  if (settings.methods.empty()) settings.methods = experiment_methods();
  if (settings.ablations.empty() && !settings.without_ablations) {
    settings.ablations = usual_ablations();
  }
  const TextColumns usual;
  const TextColumns& columns = settings.columns;
  if (settings.labelled.empty() && (columns.text != usual.text || columns.second != usual.second ||
                                    columns.label != usual.label)) {
    throw UsageError(
        "--text-column, --second-column and --label-column are of the tables of --labelled, and "
        "none is given; give one, or leave them out");
  }
  refuse_unknown_models(settings.models);
  refuse_doubles("--models", settings.models);
  refuse_doubles("--methods", settings.methods);
  refuse_doubles("--ablation", settings.ablations);
  for (const std::string& method : settings.methods) check_method(method, settings);
  for (const std::string& method : settings.ablations) check_method(method, settings);
  if (settings.report.empty()) settings.report = settings.out + "/report.md";
}

TaskOptions task_options(const ExperimentSettings& settings, const std::string& model,
                         std::uint64_t seed) {
  TaskOptions options;
  options.model = model;
  options.full_size = settings.full_size;
  options.quick = settings.quick;
  options.classify = model == "bert" && !settings.labelled.empty();
  options.columns = settings.columns;
  options.data = model == "vit"     ? settings.images
                 : options.classify ? settings.labelled
                                    : settings.text;
  options.batch = settings.batch;
  options.layers = settings.layers;
  options.width = settings.width;
  options.heads = settings.heads;
  const bool has_image = model == "vit";
  if (has_image) {
    options.image = settings.image;
    options.patch = settings.patch;
  } else {
    options.context = settings.context;
  }
  options.dropout = settings.dropout;
  options.seed = seed;
  options.device = parse_device(settings.device);
  return options;
}

nlohmann::ordered_json deciding(const ExperimentSettings& settings) {
  std::vector<std::int64_t> seeds;
  for (std::int64_t seed = 1; seed <= settings.seed_count(); ++seed) seeds.push_back(seed);
  std::vector<std::string> methods = settings.methods;
  methods.insert(methods.end(), settings.ablations.begin(), settings.ablations.end());
  nlohmann::ordered_json json = {{"models", settings.models},
                                 {"methods", methods},
                                 {"seeds", seeds},
                                 {"steps", settings.step_count()},
                                 {"budget", settings.budget},
                                 {"gradient_error", settings.gradient_error},
                                 {"learning_rate", settings.learning_rate},
                                 {"quick", settings.quick},
                                 {"full_size", settings.full_size},
                                 {"dropout", settings.dropout},
                                 {"threads", settings.threads},
                                 {"device", parse_device(settings.device).str()}};
  const std::pair<const char*, std::optional<std::int64_t>> sizes[] = {
      {"batch", settings.batch}, {"layers", settings.layers},   {"width", settings.width},
      {"heads", settings.heads}, {"context", settings.context}, {"image", settings.image},
      {"patch", settings.patch}};
  for (const auto& [name, size] : sizes) {
    if (size) json[name] = *size;
  }
  const std::pair<const char*, const std::vector<std::string>*> paths[] = {
      {"text", &settings.text}, {"images", &settings.images}, {"labelled", &settings.labelled}};
  for (const auto& [name, given] : paths) {
    if (!given->empty()) json[name] = *given;
  }
  if (!settings.labelled.empty()) {
    json["text_column"] = settings.columns.text;
    json["second_column"] = settings.columns.second;
    json["label_column"] = settings.columns.label;
  }
  return json;
}

}  // namespace reprise::app
