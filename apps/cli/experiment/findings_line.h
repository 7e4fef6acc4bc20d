// One line of an experiment's files: fields are asked for by name and type, and refused with the
// place where they stand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace reprise::app {

class FindingsLine {
 public:
  // Throws UsageError, as everything here: "FILE:LINE: FIELD: REASON".
  FindingsLine(std::filesystem::path file, std::size_t number, const std::string& text);

  [[noreturn]] void refuse(const std::string& field, const std::string& reason) const;

  bool has(const char* field) const { return object_.contains(field); }
  bool is_null(const char* field) const { return at(field).is_null(); }
  std::string text(const char* field) const;
  bool truth(const char* field) const;
  std::int64_t whole(const char* field, std::int64_t least) const;
  // NaN for null.
  double real(const char* field) const;
  double real_of_at_least_zero(const char* field) const;
  std::vector<double> reals(const char* field, std::size_t count) const;
  std::vector<std::string> texts(const char* field) const;

  const nlohmann::json& object() const { return object_; }

 private:
  const nlohmann::json& at(const char* field) const;

  std::filesystem::path file_;
  std::size_t number_;
  nlohmann::json object_;
};

}  // namespace reprise::app
