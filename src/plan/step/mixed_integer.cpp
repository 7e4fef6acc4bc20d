// Rows are gathered as HiGHS takes them.
#include "plan/step/mixed_integer.h"

#include <dlfcn.h>
#include <reprise/error.h>

#include <string>

namespace reprise::plan {

MixedIntegerProgram::Variable MixedIntegerProgram::binary(double cost) {
  const Variable variable = real(0, 1);
  cost_.back() = cost;
  is_whole_.back() = 1;
  return variable;
}

MixedIntegerProgram::Variable MixedIntegerProgram::real(double least, double most) {
  cost_.push_back(0);
  least_.push_back(least);
  most_.push_back(most);
  is_whole_.push_back(0);
  return static_cast<Variable>(cost_.size()) - 1;
}

void MixedIntegerProgram::fix(Variable variable, double value) {
  const auto at = static_cast<std::size_t>(variable);
  least_[at] = most_[at] = value;
}

void MixedIntegerProgram::row(double lower, const std::vector<Term>& terms, double upper) {
  for (const Term& term : terms) {
    variables_.push_back(term.variable);
    factors_.push_back(term.factor);
  }
  begin_.push_back(static_cast<std::int32_t>(variables_.size()));
  row_lower_.push_back(lower);
  row_upper_.push_back(upper);
}

namespace {

// The C interface of HiGHS 1, as far as it is used: its Python wheels have the library, no headers.
// It is opened when it is asked for first, so that whoever links reprise need not have it.
struct HighsLibrary {
  void* (*create)() = nullptr;
  void (*destroy)(void* highs) = nullptr;
  std::int32_t (*set_flag)(void* highs, const char* option, std::int32_t value) = nullptr;
  std::int32_t (*set_number)(void* highs, const char* option, double value) = nullptr;
  std::int32_t (*set_whole)(void* highs, const char* option, std::int32_t value) = nullptr;
  std::int32_t (*pass)(void* highs, std::int32_t columns, std::int32_t rows, std::int32_t nonzeros,
                       std::int32_t format, std::int32_t sense, double offset, const double* cost,
                       const double* least, const double* most, const double* row_lower,
                       const double* row_upper, const std::int32_t* begin,
                       const std::int32_t* index, const double* value,
                       const std::int32_t* integrality) = nullptr;
  std::int32_t (*run)(void* highs) = nullptr;
  std::int32_t (*model_status)(const void* highs) = nullptr;
  std::int32_t (*number)(const void* highs, const char* info, double* value) = nullptr;
  std::int32_t (*whole)(const void* highs, const char* info, std::int32_t* value) = nullptr;
  std::int32_t (*values)(const void* highs, double* columns, double* column_duals, double* rows,
                         double* row_duals) = nullptr;
  bool is_there = false;

  // Never closed: it may have threads.
  explicit HighsLibrary(const char* path)
      : handle_(*path == '\0' ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    is_there = handle_ != nullptr && find(create, "Highs_create") &&
               find(destroy, "Highs_destroy") && find(set_flag, "Highs_setBoolOptionValue") &&
               find(set_number, "Highs_setDoubleOptionValue") &&
               find(set_whole, "Highs_setIntOptionValue") && find(pass, "Highs_passMip") &&
               find(run, "Highs_run") && find(model_status, "Highs_getModelStatus") &&
               find(number, "Highs_getDoubleInfoValue") && find(whole, "Highs_getIntInfoValue") &&
               find(values, "Highs_getSolution");
  }

 private:
  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    return function != nullptr;
  }

  void* handle_;
};

const HighsLibrary& highs_library() {
  static const HighsLibrary library(REPRISE_HIGHS_LIBRARY);
  return library;
}

struct Highs {
  const HighsLibrary& library = highs_library();
  void* const handle = library.create();
  Highs() = default;
  Highs(const Highs&) = delete;
  Highs& operator=(const Highs&) = delete;
  ~Highs() { library.destroy(handle); }
};

}  // namespace

bool MixedIntegerProgram::has_solver() { return highs_library().is_there; }

MixedIntegerProgram::Solution MixedIntegerProgram::solve(double seconds) const {
  if (!has_solver()) {
    throw Error(
        "this build of reprise has no HiGHS: set REPRISE_HIGHS_LIBRARY to libhighs when building "
        "it, such as the one of the Python package highspy, and leave that where it is");
  }
  constexpr std::int32_t kRows = 2, kLeast = 1, kFailed = -1, kInfeasible = 8;
  const Highs highs;
  const HighsLibrary& library = highs.library;
  library.set_flag(highs.handle, "output_flag", 0);
  library.set_whole(highs.handle, "threads", 1);
  library.set_number(highs.handle, "time_limit", seconds);
  library.set_number(highs.handle, "mip_rel_gap", 1e-9);
  const std::int32_t passed = library.pass(
      highs.handle, static_cast<std::int32_t>(cost_.size()),
      static_cast<std::int32_t>(row_lower_.size()), static_cast<std::int32_t>(variables_.size()),
      kRows, kLeast, 0, cost_.data(), least_.data(), most_.data(), row_lower_.data(),
      row_upper_.data(), begin_.data(), variables_.data(), factors_.data(), is_whole_.data());
  if (passed == kFailed || library.run(highs.handle) == kFailed) {
    throw Error("HiGHS could not solve a program of " + std::to_string(cost_.size()) +
                " variables and " + std::to_string(row_lower_.size()) + " rows");
  }
  Solution solution;
  solution.is_infeasible = library.model_status(highs.handle) == kInfeasible;
  library.number(highs.handle, "mip_dual_bound", &solution.bound);
  constexpr std::int32_t kFeasible = 2;
  std::int32_t status = 0;
  library.whole(highs.handle, "primal_solution_status", &status);
  if (status != kFeasible) return solution;
  solution.is_found = true;
  library.number(highs.handle, "objective_function_value", &solution.cost);
  solution.values.resize(cost_.size());
  std::vector<double> duals(cost_.size()), rows(row_lower_.size()), row_duals(row_lower_.size());
  library.values(highs.handle, solution.values.data(), duals.data(), rows.data(), row_duals.data());
  return solution;
}

}  // namespace reprise::plan
