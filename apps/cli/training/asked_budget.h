// A byte budget as a user writes it, and the bytes that it comes to in a run.
//
// | written      | is                                                                |
// |--------------|-------------------------------------------------------------------|
// | 400MB, 8GiB  | all bytes of the device's allocator                               |
// | 80%          | that part of the peak of a plain step, which is measured for it   |
// | +84MB        | so much above what is live before the step                        |
// | least        | the least in which the step runs, which a recorded step shows     |
#pragma once

#include <reprise/bytes.h>

#include <optional>
#include <string>
#include <string_view>

namespace reprise::app {

class AskedBudget {
 public:
  // Throws UsageError, naming the option and the forms, for anything else.
  static AskedBudget parse(std::string_view option, std::string_view text);

  // What "budget:80%" asks for, among the strategies of `reprise compare`; nullopt for any other
  // strategy.
  static std::optional<AskedBudget> of_strategy(std::string_view strategy);

  const std::string& text() const { return text_; }
  bool is_share() const { return form_ == Form::kShare; }
  bool is_least() const { return form_ == Form::kLeast; }

  // Throws UsageError if it would not be above `live`, the bytes before the step. `measured`: of a
  // share the plain step's peak, of `least` the least bytes; else it does not count.
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

}  // namespace reprise::app
