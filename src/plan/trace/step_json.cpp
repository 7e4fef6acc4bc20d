// Tensors are numbered: constants first, then what operators make, in order. The builder of traces
// wants names, so numbers become names on the way.
#include "plan/trace/step_json.h"

#include <reprise/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "plan/io/json_tree.h"
#include "plan/trace/trace_builder.h"

namespace reprise::plan {
namespace {

using Number = std::int64_t;

constexpr std::string_view kFormat = "reprise step";
constexpr std::int64_t kVersion = 1;
constexpr double kMostStepSeconds = 4e6;  // what a trace can hold, in nanoseconds
constexpr std::int64_t kMostStepBytes = std::int64_t{1} << 52;
constexpr std::size_t kMostTensors = 10'000;  // that one operator reads, or makes
constexpr Number kStays = -1, kUntilLastRead = -2;

class StepReader {
 public:
  Trace read(const JsonTree& tree) {
    tree.allow({"format", "version", "constants", "operators", "results"});
    expect_format(tree, kFormat, kVersion);
    if (const JsonTree* constants = tree.find("constants")) {
      for (const JsonTree& each : constants->items()) add_constant(each);
    }
    constants_ = made();
    const JsonTree& operators = tree.at("operators");
    if (operators.items().empty()) operators.refuse("a step has at least one operator");
    for (const JsonTree& each : operators.items()) number(each);
    for (const JsonTree& each : tree.at("results").items()) {
      go(each, tensor_of(each, made()), kStays);
    }
    let_go_after_last_read();
    Number at = 0;
    for (const JsonTree& each : operators.items()) add_operator(each, at++);
    return std::move(builder_).finish();
  }

 private:
  // Of one operator, by number.
  struct Call {
    std::vector<Number> inputs;
    Number first_output = 0;
    std::vector<Number> releases;
  };

  Number made() const { return static_cast<Number>(goes_.size()); }

  static Number tensor_of(const JsonTree& tree, Number made) {
    if (made == 0) tree.refuse("is a tensor, but none was made before");
    return tree.whole(0, made - 1);
  }

  static const std::vector<JsonTree>& few(const JsonTree& list) {
    const std::vector<JsonTree>& items = list.items();
    if (items.size() > kMostTensors) {
      list.refuse("has " + std::to_string(items.size()) + " tensors; an operator has at most " +
                  std::to_string(kMostTensors));
    }
    return items;
  }

  void add_constant(const JsonTree& tree) {
    tree.allow({"bytes"});
    names_.push_back(std::to_string(made()));
    const std::int64_t bytes = tree.at("bytes").whole(0, kMostStepBytes);
    checked(tree, [&] { builder_.constant(names_.back(), bytes); });
    goes_.push_back(kStays);
  }

  // What the builder refuses concerns sums, and is of the operator at which they pass the bound.
  template <class F>
  static void checked(const JsonTree& tree, F&& add) {
    std::string reason;
    try {
      return add();
    } catch (const UsageError& error) {
      reason = error.what();
    }
    tree.refuse(reason);
  }

  // First all tensors are numbered and read, since what goes after an operator depends on the rest.
  void number(const JsonTree& tree) {
    tree.allow({"name", "seconds", "inputs", "outputs", "releases"});
    const auto at = static_cast<Number>(calls_.size());
    Call& call = calls_.emplace_back();
    if (const JsonTree* inputs = tree.find("inputs")) {
      for (const JsonTree& each : few(*inputs)) {
        call.inputs.push_back(tensor_of(each, made()));
        last_read_[call.inputs.back()] = at;
      }
    }
    call.first_output = made();
    if (const JsonTree* outputs = tree.find("outputs")) {
      for (std::size_t i = 0; i < few(*outputs).size(); ++i) {
        last_read_[made()] = at;
        names_.push_back(std::to_string(made()));
        goes_.push_back(kUntilLastRead);
      }
    }
    if (const JsonTree* releases = tree.find("releases")) {
      for (const JsonTree& each : releases->items()) {
        const Number tensor = tensor_of(each, made());
        go(each, tensor, at);
        call.releases.push_back(tensor);
      }
    }
  }

  void go(const JsonTree& tree, Number tensor, Number after) {
    if (tensor < constants_) {
      if (after == kStays) return;
      tree.refuse("is " + std::to_string(tensor) + ", a constant, which stays; leave it out");
    }
    Number& goes = goes_[static_cast<std::size_t>(tensor)];
    if (goes != kUntilLastRead) {
      tree.refuse("is " + std::to_string(tensor) +
                  (goes == kStays ? ", which is there before"
                                  : ", which operators[" + std::to_string(goes) + "] releases"));
    }
    goes = after;
  }

  void let_go_after_last_read() {
    for (Number tensor = constants_; tensor < made(); ++tensor) {
      if (goes_[static_cast<std::size_t>(tensor)] != kUntilLastRead) continue;
      calls_[static_cast<std::size_t>(last_read_[tensor])].releases.push_back(tensor);
    }
  }

  void add_operator(const JsonTree& tree, Number at) {
    const Call& call = calls_[static_cast<std::size_t>(at)];
    std::vector<std::string_view> inputs;
    std::unordered_map<Number, std::int64_t> place;
    for (const Number each : call.inputs) {
      place.try_emplace(each, std::ssize(inputs));
      inputs.push_back(name(each));
    }
    std::vector<TraceBuilder::Result> results;
    if (const JsonTree* outputs = tree.find("outputs")) {
      for (const JsonTree& each : outputs->items()) {
        results.push_back(output(each, place));
        results.back().name = name(call.first_output + std::ssize(results) - 1);
      }
    }
    const double seconds = tree.at("seconds").number(0, kMostStepSeconds);
    const JsonTree* name_field = tree.find("name");
    const std::string called = name_field != nullptr ? name_field->text() : "operator";
    checked(tree, [&] {
      builder_.call(called, inputs, results, std::llround(seconds * 1e9));
      for (const Number each : call.releases) builder_.release(name(each));
    });
  }

  static TraceBuilder::Result output(const JsonTree& tree,
                                     const std::unordered_map<Number, std::int64_t>& inputs) {
    tree.allow({"bytes", "view_of"});
    const JsonTree* view_of = tree.find("view_of");
    if (view_of == nullptr) return {.name = {}, .bytes = tree.at("bytes").whole(0, kMostStepBytes)};
    if (tree.find("bytes") != nullptr) tree.refuse("has both bytes and view_of; give one of them");
    const auto found = inputs.find(view_of->whole(0));
    if (found == inputs.end()) {
      view_of->refuse("is " + std::to_string(view_of->whole(0)) +
                      ", which is none of the operator's inputs");
    }
    return {.name = {}, .bytes = 0, .view_of = found->second};
  }

  std::string_view name(Number tensor) const { return names_[static_cast<std::size_t>(tensor)]; }

  TraceBuilder builder_;
  Number constants_ = 0;
  std::vector<std::string> names_;
  std::vector<Call> calls_;
  std::vector<Number> goes_;  // of each tensor, the operator after which
  std::unordered_map<Number, Number> last_read_;
};

// Numbers of tensors, and after which operator the program lets go of them for good.
class StepWriter {
 public:
  explicit StepWriter(const Trace& trace)
      : trace_(trace), number_(trace.tensors.size()), holds_(trace.tensors.size(), 1) {
    for (const bool constants : {true, false}) {
      for (const Trace::Operator& op : trace.operators) {
        if (op.is_constant != constants) continue;
        for (auto t = op.results.begin; t < op.results.end; ++t) number_[t] = next_++;
      }
    }
    releases_.resize(trace.operators.size());
    Trace::Index ran = 0;
    for (const Trace::Event& event : trace.events) {
      if (event.what == Trace::Do::kRun) ran = event.subject;
      if (event.what == Trace::Do::kHold) ++holds_[event.subject];
      if (event.what != Trace::Do::kRelease || --holds_[event.subject] > 0) continue;
      if (!is_constant(event.subject)) releases_[ran].push_back(number_[event.subject]);
    }
  }

  std::string text() const {
    std::string constants, operators;
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    for (Trace::Index o = 0; o < trace_.operators.size(); ++o) {
      const Trace::Operator& op = trace_.operators[o];
      if (op.is_constant) {
        add(constants, {{"bytes", op.bytes}});
      } else {
        add(operators, json_of(o));
      }
      for (auto t = op.results.begin; t < op.results.end; ++t) {
        if (!op.is_constant && holds_[t] > 0) results.push_back(number_[t]);
      }
    }
    return "{\"format\": \"" + std::string(kFormat) +
           "\", \"version\": " + std::to_string(kVersion) + ",\n\"constants\": [" + constants +
           "],\n\"operators\": [" + operators + "],\n\"results\": " + results.dump() + "}\n";
  }

 private:
  static void add(std::string& list, const nlohmann::ordered_json& item) {
    list += list.empty() ? "\n " : ",\n ";
    // Names may be any bytes.
    list += item.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }

  bool is_constant(Trace::Index tensor) const {
    return trace_.operators[trace_.tensors[tensor].producer].is_constant;
  }

  nlohmann::ordered_json json_of(Trace::Index o) const {
    const Trace::Operator& op = trace_.operators[o];
    nlohmann::ordered_json inputs = nlohmann::ordered_json::array(), outputs = inputs;
    for (auto a = op.arguments.begin; a < op.arguments.end; ++a) {
      inputs.push_back(number_[trace_.arguments[a]]);
    }
    for (auto t = op.results.begin; t < op.results.end; ++t) {
      const Trace::Tensor& made = trace_.tensors[t];
      if (!made.is_view) {
        outputs.push_back({{"bytes", trace_.values[made.value].bytes}});
        continue;
      }
      for (auto a = op.arguments.begin; a < op.arguments.end; ++a) {
        const Trace::Index viewed = trace_.arguments[a];
        if (trace_.tensors[viewed].value != made.value) continue;
        outputs.push_back({{"view_of", number_[viewed]}});
        break;
      }
    }
    nlohmann::ordered_json result = {{"name", trace_.names[op.name]},
                                     {"seconds", static_cast<double>(op.nanoseconds) / 1e9},
                                     {"inputs", std::move(inputs)},
                                     {"outputs", std::move(outputs)}};
    if (!releases_[o].empty()) result["releases"] = releases_[o];
    return result;
  }

  const Trace& trace_;
  std::vector<Number> number_;
  Number next_ = 0;
  std::vector<std::int64_t> holds_;
  std::vector<std::vector<Number>> releases_;  // by operator
};

}  // namespace

bool is_step_json(std::string_view text) {
  const std::string_view begin = text.substr(0, 4096);
  return begin.find("\"" + std::string(kFormat) + "\"") != std::string_view::npos &&
         begin.find("\"INSTRUCTION\"") == std::string_view::npos;
}

Trace parse_step_json(std::string_view text, const std::string& origin) {
  Trace trace = StepReader().read(JsonTree::parse(text, origin));
  trace.lines = std::count(text.begin(), text.end(), '\n') + (text.ends_with('\n') ? 0 : 1);
  return trace;
}

std::string step_json(const Trace& trace) { return StepWriter(trace).text(); }

}  // namespace reprise::plan
