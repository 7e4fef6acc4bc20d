#include "apps/cli/io/option_group.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <utility>

namespace reprise::app {

namespace {

// NaN is in no range.
template <class T>
std::optional<T> number_in(std::string_view text, T least, T most) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool is_number = error == std::errc() && stop == end;
  return is_number && value >= least && value <= most ? std::optional(value) : std::nullopt;
}

std::string path_of(const char* option, const std::string& text) {
  if (text.empty()) throw UsageError(fmt::format("{} is empty: give a path", option));
  if (text.starts_with("--")) {
    throw UsageError(fmt::format(
        "{} is '{}', which looks like an option: give a path, such as ./{}", option, text, text));
  }
  return text;
}

}  // namespace

std::int64_t read_whole(std::string_view option, std::string_view text, WholeRange range) {
  if (const auto value = number_in(text, range.least, range.most)) return *value;
  throw UsageError(fmt::format("{} is '{}': give a whole number between {} and {}", option, text,
                               range.least, range.most));
}

double read_real(std::string_view option, std::string_view text, RealRange range) {
  if (const auto value = number_in(text, range.least, range.most)) return *value;
  throw UsageError(fmt::format("{} is '{}': give a number between {} and {}", option, text,
                               range.least, range.most));
}

CLI::Option* OptionGroup::add(const char* option, const char* type, const std::string& help,
                              Reader read) {
  const CLI::callback_t callback = [read = std::move(read)](const CLI::results_t& texts) {
    read(texts.back());
    return true;
  };
  return command_.add_option(option, callback, help)
      ->type_name(type)
      ->group(name_)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void OptionGroup::add_list(const char* option, const std::string& shown_default,
                           const std::string& help,
                           const std::function<void(const std::vector<std::string>&)>& read) {
  command_.add_option_function<std::vector<std::string>>(option, read, help)
      ->type_name("LIST")
      ->group(name_)
      ->delimiter(',')
      ->transform(CLI::Validator(
          [](std::string& text) { return text = CLI::detail::trim_copy(text), ""; }, ""))
      ->default_str(shown_default);
}

void OptionGroup::text(const char* option, const char* type, std::string& target,
                       const std::string& help) {
  add(option, type, help, [&target](const std::string& text) {
    target = text;
  })->default_str(target);
}

void OptionGroup::text(const char* option, const char* type, std::optional<std::string>& target,
                       const std::string& help) {
  add(option, type, help, [&target](const std::string& text) { target = text; });
}

void OptionGroup::whole(const char* option, std::int64_t& target, WholeRange range,
                        const std::string& help) {
  add(option, "N", help, [&target, option, range](const std::string& text) {
    target = read_whole(option, text, range);
  })->default_str(std::to_string(target));
}

void OptionGroup::whole(const char* option, int& target, WholeRange range,
                        const std::string& help) {
  add(option, "N", help, [&target, option, range](const std::string& text) {
    target = static_cast<int>(read_whole(option, text, range));
  })->default_str(std::to_string(target));
}

void OptionGroup::whole(const char* option, std::optional<std::int64_t>& target, WholeRange range,
                        const std::string& help) {
  add(option, "N", help, [&target, option, range](const std::string& text) {
    target = read_whole(option, text, range);
  });
}

void OptionGroup::real(const char* option, double& target, RealRange range,
                       const std::string& help) {
  add(option, "X", help, [&target, option, range](const std::string& text) {
    target = read_real(option, text, range);
  })->default_str(fmt::format("{}", target));
}

void OptionGroup::real(const char* option, std::optional<double>& target, RealRange range,
                       const std::string& help) {
  add(option, "X", help, [&target, option, range](const std::string& text) {
    target = read_real(option, text, range);
  });
}

void OptionGroup::path(const char* option, const char* type, std::string& target,
                       const std::string& help) {
  value(option, type, target, path_of, help);
}

void OptionGroup::paths(const char* option, std::vector<std::string>& target,
                        const std::string& help) {
  const auto read = [&target, option](const std::vector<std::string>& texts) {
    target.clear();
    for (const std::string& text : texts) target.push_back(path_of(option, text));
  };
  command_.add_option_function<std::vector<std::string>>(option, read, help)
      ->type_name("PATH")
      ->group(name_);
}

void OptionGroup::names(const char* option, std::vector<std::string>& target,
                        const std::string& shown_default, const std::string& help) {
  list(
      option, target, [](const char*, const std::string& text) { return text; }, shown_default,
      help);
}

void OptionGroup::flag(const char* option, bool& target, const std::string& help) {
  command_.add_flag(option, target, help)->group(name_)->disable_flag_override();
}

}  // namespace reprise::app
