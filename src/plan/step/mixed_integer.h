// Linear programs some of whose variables are whole numbers, and HiGHS, which solves them, where
// the build has it.
#pragma once

#include <cstdint>
#include <vector>

namespace reprise::plan {

// Least sum of cost * variable, under lower <= row <= upper.
class MixedIntegerProgram {
 public:
  using Variable = std::int32_t;
  struct Term {
    Variable variable;
    double factor;
  };

  Variable binary(double cost = 0);
  Variable real(double least, double most);
  void fix(Variable variable, double value);
  void row(double lower, const std::vector<Term>& terms, double upper);

  struct Solution {
    bool is_found = false;       // some values fit
    bool is_infeasible = false;  // proven that none do
    double cost = 0;
    double bound = 0;  // that no solution's cost can be below; proven
    std::vector<double> values;
  };
  // The best that is found in that many seconds. Throws Error where the build has no HiGHS.
  Solution solve(double seconds) const;
  static bool has_solver();

 private:
  std::vector<double> cost_, least_, most_;
  std::vector<std::int32_t> is_whole_;
  std::vector<double> row_lower_, row_upper_;
  std::vector<std::int32_t> begin_{0}, variables_;
  std::vector<double> factors_;
};

}  // namespace reprise::plan
