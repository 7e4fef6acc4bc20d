// The settings of the process that LibTorch's kernels read: all of at::Context, and the default
// dtype. ambient_state.h says which there are, and who reads them.
//
// at::Context has a getter and a setter for each, which are not used here: some throw or warn where
// a program has mixed its older and newer interfaces, others give what a setting comes to and not
// what it is. Its members are read and written as bytes, so that none is left out.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>

namespace reprise::libtorch {

struct ProcessSettings {
  // What is in force. Equal settings are one object, which is never freed: a program has few.
  static const ProcessSettings& current();
  // Makes `to` of `from` where the two differ, for all threads.
  static void change(const ProcessSettings& from, const ProcessSettings& to);

  bool operator==(const ProcessSettings&) const = default;

  // Of at::Context, from its first setting to the last but the precisions.
  std::array<std::byte, 128> flags{};
  // Of float32 products and convolutions, by backend and operator: at::Float32Precision.
  std::array<std::byte, 16> precisions{};
  c10::ScalarType default_dtype = c10::ScalarType::Undefined;
};

// Puts settings in force until destroyed. Scopes of several threads may overlap and end in any
// order: the settings are the process's, so those of the scope that began last are in force, and
// when the last scope has ended, those from before the first one.
class ProcessSettingsScope {
 public:
  explicit ProcessSettingsScope(const ProcessSettings& settings);
  ~ProcessSettingsScope();
  ProcessSettingsScope(const ProcessSettingsScope&) = delete;
  ProcessSettingsScope& operator=(const ProcessSettingsScope&) = delete;

  // Whether there is one on any thread. Settings that are in force already may change with its end.
  static bool is_any_open();

 private:
  const ProcessSettings& settings_;
};

}  // namespace reprise::libtorch
