// Options of a command, in the groups that its help text shows, each with its type and its default.
// CLI11 parses the words; numbers are read here, because CLI11 2.1 reads "010" as eight, accepts
// NaN and passes over an overflow.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::app {

// Both bounds belong to the range.
struct WholeRange {
  std::int64_t least, most;
};
struct RealRange {
  double least, most;
};

// Throw UsageError, naming the option, the text and the bounds, for anything but a decimal number
// of the range.
std::int64_t read_whole(std::string_view option, std::string_view text, WholeRange range);
double read_real(std::string_view option, std::string_view text, RealRange range);

// A target's present value is the default that the help shows. If an option is given twice, the
// last value counts; lists grow. Readers throw UsageError.
class OptionGroup {
 public:
  OptionGroup(CLI::App& command, const char* name) : command_(command), name_(name) {}

  void text(const char* option, const char* type, std::string& target, const std::string& help);
  void text(const char* option, const char* type, std::optional<std::string>& target,
            const std::string& help);
  void whole(const char* option, std::int64_t& target, WholeRange range, const std::string& help);
  void whole(const char* option, int& target, WholeRange range, const std::string& help);
  void whole(const char* option, std::optional<std::int64_t>& target, WholeRange range,
             const std::string& help);
  void real(const char* option, double& target, RealRange range, const std::string& help);
  void real(const char* option, std::optional<double>& target, RealRange range,
            const std::string& help);
  // Refuses an empty path.
  void path(const char* option, const char* type, std::string& target, const std::string& help);
  void paths(const char* option, std::vector<std::string>& target, const std::string& help);
  void flag(const char* option, bool& target, const std::string& help);

  // A value of any type; `read` gets the option's name and the text.
  template <class T, class Read>
  void value(const char* option, const char* type, T& target, Read read, const std::string& help) {
    add(option, type, help,
        [&target, option, read](const std::string& text) { target = read(option, text); });
  }
  // Values with commas between them. Blanks around a value do not count.
  template <class T, class Read>
  void list(const char* option, std::vector<T>& target, Read read, const std::string& shown_default,
            const std::string& help) {
    add_list(option, shown_default, help,
             [&target, option, read](const std::vector<std::string>& texts) {
               target.clear();
               for (const std::string& text : texts) target.push_back(read(option, text));
             });
  }
  void names(const char* option, std::vector<std::string>& target, const std::string& shown_default,
             const std::string& help);

 private:
  using Reader = std::function<void(const std::string& text)>;
  CLI::Option* add(const char* option, const char* type, const std::string& help, Reader read);
  void add_list(const char* option, const std::string& shown_default, const std::string& help,
                const std::function<void(const std::vector<std::string>&)>& read);

  CLI::App& command_;
  const char* name_;
};

}  // namespace reprise::app
