// The table of models, and the options that each of them has.
#include "apps/cli/experiment/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/error.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "apps/cli/experiment/block_task.h"

namespace reprise::app {

namespace {

std::unique_ptr<Task> make_bert_task(const TaskOptions& options) {
  return options.classify ? make_text_class_task(options) : make_masked_word_task(options);
}

struct TaskKind {
  std::string_view name;
  std::unique_ptr<Task> (*make)(const TaskOptions&);
  bool reads_text, classifies_text;
};

constexpr TaskKind kTaskKinds[] = {{"bert", make_bert_task, true, true},
                                   {"gpt2", make_gpt_task, true, false},
                                   {"vit", make_image_class_task, false, false}};

void refuse_option(bool given, std::string_view option, std::string_view model) {
  if (!given) return;
  throw UsageError(
      fmt::format("{} has no {}; leave it out or choose another model", model, option));
}

}  // namespace

std::vector<std::string> task_models() {
  std::vector<std::string> names;
  for (const TaskKind& kind : kTaskKinds) names.emplace_back(kind.name);
  return names;
}

std::unique_ptr<Task> make_task(const TaskOptions& options) {
  const auto* const kind = std::ranges::find(kTaskKinds, options.model, &TaskKind::name);
  if (kind == std::end(kTaskKinds)) {
    throw UsageError(fmt::format("unknown model '{}'; choose one of {}", options.model,
                                 fmt::join(task_models(), ", ")));
  }
  refuse_option(options.classify && !kind->classifies_text, "classes of labelled texts",
                kind->name);
  refuse_option(options.context && !kind->reads_text, "context", kind->name);
  refuse_option(options.image && kind->reads_text, "image size", kind->name);
  refuse_option(options.patch && kind->reads_text, "patch size", kind->name);
  return kind->make(options);
}

}  // namespace reprise::app
