// PGAC and influence from Python: a list of modules whose activations are scored.
#include <pybind11/stl.h>
#include <reprise/error.h>
#include <reprise/experimental/pgac.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "checkpoint_call.h"
#include "layers.h"
#include "record.h"

namespace reprise::python {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

// In the order of the enumerators.
constexpr std::array kRankings = {"influence", "cost", "influence_times_cost", "random"};
constexpr std::array kSchedules = {"constant", "linear", "cosine", "learned"};
constexpr std::array kStarts = {"first_score", "zero"};
constexpr std::array kRoutes = {"kept", "bf16", "int8", "int4", "recomputed"};

template <class Enum, std::size_t kCount>
Enum choice(const char* option, const py::handle& value,
            const std::array<const char*, kCount>& names) {
  const auto text = option_as<std::string>(value, std::string("Pgac: ") + option);
  std::string all;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (text == names.at(i)) return static_cast<Enum>(i);
    all += std::string(all.empty() ? "'" : ", '") + names.at(i) + "'";
  }
  throw UsageError("Pgac: " + std::string(option) + " is '" + text + "'; it is one of " + all);
}

// A number, or a tuple of a kind and its one or two numbers.
GammaSchedule gamma_of(const py::handle& value) {
  if (!py::isinstance<py::tuple>(value)) {
    return GammaSchedule::constant(option_as<double>(value, "Pgac: gamma"));
  }
  const auto given = py::reinterpret_borrow<py::tuple>(value);
  if (given.size() < 2 || given.size() > 3) {
    throw UsageError(
        "Pgac: gamma is " + py::repr(given).cast<std::string>() +
        "; give a number, or a tuple such as ('linear', 1.0, 0.5) or ('learned', 1.0)");
  }
  GammaSchedule schedule;
  schedule.kind = choice<GammaSchedule::Kind>("gamma's kind", given[0], kSchedules);
  schedule.first = option_as<double>(given[1], "Pgac: gamma's first number");
  schedule.last =
      given.size() == 3 ? option_as<double>(given[2], "Pgac: gamma's last number") : schedule.first;
  return schedule;
}

// The function of Python is given back under the interpreter's lock, whoever drops it.
std::function<void(std::vector<double>&)> combine_of(const py::handle& value) {
  if (value.is_none()) return {};
  const auto function = std::make_shared<Owned>(Owned::borrowed(value.ptr()));
  return [function](std::vector<double>& averages) {
    const py::gil_scoped_acquire gil;
    averages = option_as<std::vector<double>>(py::handle(function->get())(averages),
                                              "Pgac: what combine returned", "a list of numbers");
  };
}

PgacOptions pgac_options_of(const py::kwargs& given) {
  PgacOptions options;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const std::string of = "Pgac: " + name;
    if (name == "alpha") {
      options.alpha = option_as<double>(value, of);
    } else if (name == "quantile") {
      options.quantile = option_as<double>(value, of);
    } else if (name == "gamma") {
      options.gamma = gamma_of(value);
    } else if (name == "steps") {
      options.steps = option_as<std::int64_t>(value, of);
    } else if (name == "budget") {
      if (!value.is_none()) options.budget = bytes_of(value, "Pgac: the budget");
    } else if (name == "ranking") {
      options.ranking = choice<PgacRanking>("ranking", value, kRankings);
    } else if (name == "fill_budget") {
      options.fill_budget = option_as<bool>(value, of);
    } else if (name == "exact_search") {
      options.exact_search = option_as<bool>(value, of);
    } else if (name == "lossy") {
      options.lossy = option_as<std::optional<LossyOptions>>(value, of, "a LossyOptions or None");
    } else if (name == "start") {
      options.start = choice<PgacOptions::Start>("start", value, kStarts);
    } else if (name == "follow_pseudocode") {
      options.follow_pseudocode = option_as<bool>(value, of);
    } else if (name == "hysteresis") {
      options.hysteresis = option_as<double>(value, of);
    } else if (name == "steps_between_changes") {
      options.steps_between_changes = option_as<std::int64_t>(value, of);
    } else if (name == "stride") {
      options.stride = option_as<std::int64_t>(value, of);
    } else if (name == "seed") {
      options.seed = option_as<std::uint64_t>(value, of);
    } else if (name == "combine") {
      options.combine = combine_of(value);
    } else {
      throw py::type_error("Pgac() got an unexpected keyword argument '" + name + "'");
    }
  }
  return options;
}

std::vector<std::string> routes_of(const PgacReport& report) {
  std::vector<std::string> routes;
  for (const PgacRoute route : report.routes) {
    routes.emplace_back(kRoutes.at(static_cast<std::size_t>(route)));
  }
  return routes;
}

void bind_pgac_report(py::module_& module) {
  Record<LossyOptions> lossy(
      module, "LossyOptions",
      "The lossy tier of a Pgac: layers below the threshold are kept in 8 or 4 bits, which changes\n"
      "gradients.");
  lossy
      .figure("gradient_error", &LossyOptions::gradient_error,
              "The most relative error of a step's gradients; above 0.")
      .figure("int4_threshold", &LossyOptions::int4_threshold,
              "Layers below this times the threshold are kept in 4 bits; from 0 to 1.")
      .figure("audit_every", &LossyOptions::audit_every,
              "Steps from one audit to the next, in the mean.")
      .figure("min_bytes", &LossyOptions::min_bytes, "Smaller values stay as they are.")
      .figure("block", &LossyOptions::block, "Elements that share a minimum and a unit.")
      .figure("seed", &LossyOptions::seed, "Of stochastic rounding, and of when audits are.")
      .pickled();
  lossy.type().def(
      py::init([](double gradient_error, double int4_threshold, std::int64_t audit_every,
                  const py::object& min_bytes, std::int64_t block, std::uint64_t seed) {
        return LossyOptions{gradient_error, int4_threshold,
                            audit_every,    bytes_of(min_bytes, "LossyOptions: min_bytes"),
                            block,          seed};
      }),
      py::kw_only(), py::arg("gradient_error") = 1e-2, py::arg("int4_threshold") = 0.5,
      py::arg("audit_every") = 64, py::arg("min_bytes") = "64KiB", py::arg("block") = 256,
      py::arg("seed") = 0);

  Record<PgacLayer>(module, "PgacLayer", "One layer of the method.")
      .figure("name", &PgacLayer::name, "Its name.")
      .figure("first", &PgacLayer::first, "The first layer of the model that it stands for.")
      .figure("count", &PgacLayer::count, "How many.")
      .pickled();

  Record<PgacReport>(
      module, "PgacReport",
      "The last observed step: bytes (int) and times (float, seconds).\n\n"
      "Lists have an entry for each layer, and are empty before the first step. Scores that are left\n"
      "out and audits that fail raise nothing: `not_finite`, `changed` and `audit_failures` count them.")
      .figure("step", &PgacReport::step, "Its number; -1: none.")
      .figure("scores", &PgacReport::scores, "The influence in this step; NaN if no score came.")
      .figure("averages", &PgacReport::averages, "The moving averages; NaN if no score ever came.")
      .figure("gamma", &PgacReport::gamma, "The factor of the threshold.")
      .figure("threshold", &PgacReport::threshold, "NaN while no layer has an average.")
      .figure("wanted", &PgacReport::wanted, "Whether each layer is kept, by the threshold.")
      .figure("mask", &PgacReport::mask, "The same of the last run(), after the budget.")
      .figure("changes", &PgacReport::changes, "Changed entries of `mask` since the beginning.")
      .figure("not_finite", &PgacReport::not_finite, "Scores left out: infinite, or not a number.")
      .figure("changed", &PgacReport::changed,
              "Scores left out: the activation was changed in place.")
      .figure("error", &PgacReport::error, "The largest relative error of the step's scores.")
      .figure("predicted_peak", &PgacReport::predicted_peak,
              "Bytes that the mask needs; only with a budget.")
      .figure("predicted_recompute", &PgacReport::predicted_recompute,
              "Seconds for the mask; only with a budget.")
      .figure("by_search", &PgacReport::by_search, "The mask is the cheapest that fits.")
      .figure("routes", &routes_of,
              "Each layer's route in the last run(): \"kept\", \"bf16\", \"int8\", \"int4\" or "
              "\"recomputed\".")
      .figure("gradient_error", &PgacReport::gradient_error,
              "The most expected relative error of the gradients, by the lossy tier.")
      .figure("compressed_from", &PgacReport::compressed_from, "Parked bytes before compression.")
      .figure("compressed_to", &PgacReport::compressed_to, "Parked bytes after compression.")
      .figure("is_known", &PgacReport::is_known, "All layers' inputs were like audited ones.")
      .figure("audited", &PgacReport::audited, "The step was audited.")
      .figure("audits", &PgacReport::audits, "Since the beginning.")
      .figure("audit_failures", &PgacReport::audit_failures,
              "Audits that found more than the bound.")
      .figure("audited_error", &PgacReport::audited_error,
              "The error that the last audit measured; -1: there was none.")
      .figure("refused", &PgacReport::refused, "Layers that stay exact.")
      .figure("lossy_off", &PgacReport::lossy_off,
              "Why the lossy tier is switched off; empty if not.")
      .kept(&routes_of,
            [](PgacReport& report, const std::vector<std::string>& routes) {
              for (const auto& route : routes) {
                report.routes.push_back(choice<PgacRoute>("route", py::str(route), kRoutes));
              }
            })
      .pickled();
}

void bind_influence(py::module_& module) {
  Record<InfluenceScore>(module, "InfluenceScore", "The influence of a layer's activation.")
      .figure("layer", &InfluenceScore::layer, "Its number.")
      .figure("value", &InfluenceScore::value,
              "The root of the sum of squares over all gradients since the last take().")
      .figure("error", &InfluenceScore::error, "Relative standard error; 0 without sampling.")
      .figure("gradients", &InfluenceScore::gradients, "Summed in `value`.")
      .figure("not_finite", &InfluenceScore::not_finite, "Left out: infinite, or not a number.")
      .figure("changed", &InfluenceScore::changed, "Left out: the activation was changed in place.")
      .figure("missed", &InfluenceScore::missed, "Left out: the first backward kept no graph.")
      .pickled();
  py::class_<InfluenceMeter>(
      module, "InfluenceMeter",
      "Scores activations by their influence on a step's gradients: s = |d * a|, with the gradient d\n"
      "of the activation a.\n\n"
      "    meter.watch(3, h)           # in forward: the output of layer 3\n"
      "    loss.backward()\n"
      "    for score in meter.take(): print(score.layer, score.value)\n\n"
      "stride: looks at one run of 64 elements in this many. The gradients are unchanged. watch() may\n"
      "be called on any thread; take() when no backward is under way. Raises UsageError for a stride\n"
      "below 1.")
      .def(py::init([](std::int64_t stride) { return InfluenceMeter({.stride = stride}); }),
           py::kw_only(), py::arg("stride") = 1)
      .def(
          "watch", &InfluenceMeter::watch, py::arg("layer"), py::arg("activation"), NoGil(),
          "Adds the influence of an activation to the score of a layer (from 0) in backward.\n\n"
          "Nothing happens for a tensor without history. Raises UsageError for a layer below zero.")
      .def("take", &InfluenceMeter::take, NoGil(),
           "The scores since the last call, by layer: a list of InfluenceScore.")
      .def("clear", &InfluenceMeter::clear, NoGil(), "Forgets the scores since the last take().");
  module.def(
      "influence_of", &influence_of, py::arg("gradient"), py::arg("activation"), NoGil(),
      "|gradient * activation|, computed now. Raises UsageError for tensors of other kinds than\n"
      "float, double, half, bfloat16 or complex, or of different shapes.");
  module.def(
      "influence_weights",
      [](double alpha, double min_weight, std::int64_t stride) {
        return influence_weights({.alpha = alpha, .min_weight = min_weight, .stride = stride});
      },
      py::kw_only(), py::arg("alpha") = 0.9, py::arg("min_weight") = 1e-2, py::arg("stride") = 1,
      "Weights by the influence of values on gradients (docs/pgac.md): those of less influence are\n"
      "dropped sooner.\n\n"
      "alpha: of the moving average over steps, at least 0 and below 1.\n"
      "min_weight: the least weight, from 1e-6 to 1.\n"
      "stride: looks at one run of 64 elements in this many.\n\n"
      "Raises UsageError for options out of range.");
}

}  // namespace

void bind_pgac(py::module_& module) {
  bind_pgac_report(module);
  bind_influence(module);
  py::class_<Pgac>(module, "PgacRunner")
      .def(py::init([](const py::args& layers, const py::kwargs& options) {
        if (!layers.empty()) {
          throw UsageError(
              "Pgac(): options are given by name, as in Pgac(quantile=0.5), and the layers to "
              "run(layers, x)");
        }
        return Pgac(pgac_options_of(options));
      }))
      .def("run_described",
           [](Pgac& pgac, const py::list& described, const at::Tensor& x) {
             const detail::Layers layers = layers_of(described, "Pgac.run");
             const py::gil_scoped_release no_gil;
             return pgac.run_layers(layers, x);
           })
      .def(
          "observe", &Pgac::observe, py::arg("step"), NoGil(),
          "Call it after backward of each step, numbered from 0, and before gradients are zeroed.\n\n"
          "Makes averages, threshold and the next mask. Raises UsageError for a step below zero, or\n"
          "above `steps` if gamma depends on it.")
      .def("set_mask", &Pgac::set_mask, py::arg("keep"), NoGil(),
           "Sets the wanted mask, one bool a layer, until the next observe() that has scores.\n\n"
           "Raises UsageError before the first run(), and for a mask of another length.")
      .def("discard_step", &Pgac::discard_step, NoGil(),
           "Forgets the scores since the last observe(): after a step that ended with an error.")
      .def_property_readonly("layers", &Pgac::layers,
                             "A list of PgacLayer; empty before the first run().")
      .def("report", &Pgac::report, NoGil(), "A PgacReport.")
      .def("state", &Pgac::state, NoGil(), "The state of a resumed training, as JSON.")
      .def("restore", &Pgac::restore, py::arg("state"), py::arg("origin") = "state", NoGil(),
           "Takes the state of a Pgac with the same options, but for `budget` and `combine`.\n\n"
           "Raises UsageError \"ORIGIN:LINE: field: reason\" for a text that is none.");
}

}  // namespace reprise::python
