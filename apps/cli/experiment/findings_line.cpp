// Types are checked strictly: nlohmann's get<>() would take true for 1 and 2.7 for 2.
#include "apps/cli/experiment/findings_line.h"

#include <fmt/format.h>
#include <reprise/error.h>

#include <limits>
#include <utility>

#include "apps/cli/io/figures.h"

namespace reprise::app {

FindingsLine::FindingsLine(std::filesystem::path file, std::size_t number, const std::string& text)
    : file_(std::move(file)),
      number_(number),
      object_(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false)) {
  if (!object_.is_object()) {
    throw UsageError(
        fmt::format("{}:{}: the line is no JSON object; is it of an experiment? A run's "
                    "file that is removed is made anew by the command that made it",
                    escape(file_.string()), number_));
  }
}

void FindingsLine::refuse(const std::string& field, const std::string& reason) const {
  throw UsageError(fmt::format("{}:{}: {}: {}", escape(file_.string()), number_, field, reason));
}

const nlohmann::json& FindingsLine::at(const char* field) const {
  const auto found = object_.find(field);
  if (found == object_.end()) refuse(field, "is missing");
  return *found;
}

std::string FindingsLine::text(const char* field) const {
  const nlohmann::json& value = at(field);
  if (!value.is_string()) refuse(field, "is " + value.dump() + ", and must be a text");
  return value.get<std::string>();
}

bool FindingsLine::truth(const char* field) const {
  const nlohmann::json& value = at(field);
  if (!value.is_boolean()) refuse(field, "is " + value.dump() + ", and must be true or false");
  return value.get<bool>();
}

std::int64_t FindingsLine::whole(const char* field, std::int64_t least) const {
  const nlohmann::json& value = at(field);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits =
      value.is_number_unsigned() ? value.get<std::uint64_t>() <= kMost : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < least) {
    refuse(field, fmt::format("is {}, and must be a whole number from {} on", value.dump(), least));
  }
  return value.get<std::int64_t>();
}

double FindingsLine::real(const char* field) const {
  const nlohmann::json& value = at(field);
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number()) refuse(field, "is " + value.dump() + ", and must be a number or null");
  return value.get<double>();
}

double FindingsLine::real_of_at_least_zero(const char* field) const {
  const double value = real(field);
  if (value < 0) refuse(field, fmt::format("is {}, and must not be below zero", value));
  return value;
}

std::vector<double> FindingsLine::reals(const char* field, std::size_t count) const {
  const nlohmann::json& list = at(field);
  if (!list.is_array() || list.size() != count) {
    refuse(field, fmt::format("must be a list of {} numbers, one a layer", count));
  }
  std::vector<double> values;
  for (const nlohmann::json& value : list) {
    if (!value.is_number() && !value.is_null()) {
      refuse(field, "has " + value.dump() + " in it, and may only have numbers and null");
    }
    values.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                     : value.get<double>());
  }
  return values;
}

std::vector<std::string> FindingsLine::texts(const char* field) const {
  const nlohmann::json& list = at(field);
  if (!list.is_array()) refuse(field, "is " + list.dump() + ", and must be a list of texts");
  std::vector<std::string> values;
  for (const nlohmann::json& value : list) {
    if (!value.is_string())
      refuse(field, "has " + value.dump() + " in it, and may only have texts");
    values.push_back(value.get<std::string>());
  }
  return values;
}

}  // namespace reprise::app
