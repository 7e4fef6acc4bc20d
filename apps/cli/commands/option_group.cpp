// CLI11 is given callbacks alone, which leaves it the words and keeps the values here.
#include "apps/cli/commands/option_group.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <utility>

namespace reprise::app {

namespace {

void require_path(const char* option, const std::string& path) {
  if (path.empty()) throw UsageError(fmt::format("{} is empty: give a path", option));
}

// Between commas; blanks inside belong to a name, which may hold a folder. A list may go on in the
// next word, so that a comma may stand at the ends of one.
std::vector<std::string> split_names(const char* option, const std::string& text) {
  std::vector<std::string> names;
  const std::size_t begin = text.find_first_not_of(" \t");
  if (text.find_first_not_of(", \t") == std::string::npos) return names;
  std::istringstream parts(text.substr(text[begin] == ',' ? begin + 1 : begin));
  for (std::string part; std::getline(parts, part, ',');) {
    part = CLI::detail::trim(part);
    if (part.empty() && !parts.eof()) {
      throw UsageError(fmt::format(
          "{} is '{}': an entry is empty; write them with one comma between", option, text));
    }
    if (!part.empty()) names.push_back(part);
  }
  return names;
}

}  // namespace

CLI::Option* OptionGroup::add(const char* option, const char* type, const char* help, Reader read) {
  const CLI::callback_t callback = [read = std::move(read)](const CLI::results_t& texts) {
    read(texts.back());
    return true;
  };
  return command_.add_option(option, callback, help)
      ->type_name(type)
      ->group(name_)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CLI::Option* OptionGroup::add_list(const char* option, const char* type, const char* help,
                                   std::function<void(const std::vector<std::string>&)> read) {
  const CLI::callback_t callback = [read = std::move(read)](const CLI::results_t& texts) {
    read(texts);
    return true;
  };
  // Several words after one option were made several options before (arguments.h): CLI11 would take
  // the brackets of a word off.
  return command_.add_option(option, callback, help)
      ->type_name(type)
      ->group(name_)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void OptionGroup::text(const char* option, const char* type, std::string& target,
                       const char* help) {
  add(option, type, help, [&target](const std::string& text) {
    target = text;
  })->default_str(target);
}

void OptionGroup::text(const char* option, const char* type, std::optional<std::string>& target,
                       const char* help) {
  add(option, type, help, [&target](const std::string& text) { target = text; });
}

void OptionGroup::whole(const char* option, std::int64_t& target, WholeRange range,
                        const char* help) {
  add(option, "N", help, [&target, option, range](const std::string& text) {
    target = read_whole(option, text, range);
  })->default_str(fmt::format("{}", target));
}

void OptionGroup::whole(const char* option, int& target, WholeRange range, const char* help) {
  add(option, "N", help, [&target, option, range](const std::string& text) {
    target = static_cast<int>(read_whole(option, text, range));
  })->default_str(fmt::format("{}", target));
}

void OptionGroup::whole(const char* option, std::optional<std::int64_t>& target, WholeRange range,
                        const char* help) {
  add(option, "N", help, [&target, option, range](const std::string& text) {
    target = read_whole(option, text, range);
  });
}

void OptionGroup::real(const char* option, double& target, RealRange range, const char* help) {
  add(option, "X", help, [&target, option, range](const std::string& text) {
    target = read_real(option, text, range);
  })->default_str(fmt::format("{}", target));
}

void OptionGroup::real(const char* option, std::optional<double>& target, RealRange range,
                       const char* help) {
  add(option, "X", help, [&target, option, range](const std::string& text) {
    target = read_real(option, text, range);
  });
}

void OptionGroup::path(const char* option, const char* type, std::string& target,
                       const char* help) {
  add(option, type, help, [&target, option](const std::string& text) {
    require_path(option, text);
    target = text;
  });
}

void OptionGroup::paths(const char* option, std::vector<std::string>& target, const char* help) {
  add_list(option, "PATH", help, [&target, option](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) require_path(option, text);
    target = texts;
  });
}

void OptionGroup::names(const char* option, std::vector<std::string>& target,
                        const std::string& shown_default, const char* help) {
  add_list(option, "LIST", help, [&target, option](const std::vector<std::string>& texts) {
    target.clear();
    for (const std::string& text : texts) {
      for (std::string& name : split_names(option, text)) target.push_back(std::move(name));
    }
    if (target.empty()) throw UsageError(fmt::format("{} names nothing: give a list", option));
  })->default_str(shown_default);
}

void OptionGroup::flag(const char* option, bool& target, const char* help) {
  command_.add_flag(option, target, help)->group(name_)->disable_flag_override();
}

}  // namespace reprise::app
