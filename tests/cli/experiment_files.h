// Small data files for the tests of experiments, made on the spot.
#pragma once

#include <string>

#include "tests/cli/program.h"

namespace reprise::app {

std::string gzipped(const std::string& text);

// A PNG of 8 bits for each of red, green and blue, row by row.
std::string png(int width, int height, const std::string& rgb);

// A picture of one grey pixel.
std::string ppm_of_one(int grey);

// A line of scikit-learn's table of digits, all of whose pixels are equal.
std::string digit_record(int digit, int pixel);

// Sets a variable of the environment, or removes it for an empty value, while the object lives.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value);
  ~EnvironmentVariable();
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  const char* name_;
  bool was_set_;
  std::string before_;
};

}  // namespace reprise::app
