// A byte budget as a user writes it, and the bytes that it comes to in a run.
//
// | written      | means                                                                 |
// |--------------|-----------------------------------------------------------------------|
// | 400MB, 8GiB  | all bytes of the device's allocator                                   |
// | 80%, 0.8     | that part of the peak of a plain step                                 |
// | +84MB        | bytes above those live before the step                                |
// | least        | the least in which the step runs, which a recorded step shows         |
#pragma once

#include <reprise/bytes.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::app {

class AskedBudget {
 public:
  // Throws UsageError, naming the option and the forms, for anything else.
  static AskedBudget parse(std::string_view option, std::string_view text);
  // Also refuses +84MB and `least`: a plan sees no step that runs.
  static AskedBudget parse_planned(std::string_view option, std::string_view text);

  // The budget of the strategy "budget:80%"; nullopt for any other strategy.
  static std::optional<AskedBudget> of_strategy(std::string_view strategy);

  const std::string& text() const { return text_; }
  bool is_share() const { return form_ == Form::kShare; }
  bool is_least() const { return form_ == Form::kLeast; }

  // The bytes of a planned budget.
  Bytes of_peak(Bytes plain_peak) const;
  // Throws UsageError unless the budget is above `live`, the bytes before the step. `measured` is
  // the plain step's peak for a share, and the least bytes for `least`. Other forms ignore it.
  Bytes limit(Bytes live, Bytes measured) const;
  // "86.9 MB: 80% of the plain step's 108.6 MB".
  std::string describe(Bytes live, Bytes measured) const;

 private:
  enum class Form { kAll, kShare, kAbove, kLeast };

  std::string option_, text_;
  Form form_ = Form::kAll;
  Bytes bytes_;
  double share_ = 0;
};

// Planned budgets as help texts show them: "100%,75%".
std::vector<AskedBudget> planned_budgets(const char* list);

}  // namespace reprise::app
