// Which memory the system is asked to back by large pages.
#include <gtest/gtest.h>
#include <reprise/checkpoint.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace reprise {
namespace {

// The flags of the mapping that this address lies in; empty where the system does not tell.
std::string flags_of_mapping(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool is_in = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      is_in = begin <= wanted && wanted < end;
    } else if (is_in && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return {};
}

bool is_advised(const at::Tensor& tensor) {
  // The middle: what malloc puts at the edges may share a page.
  const auto* const bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  return flags_of_mapping(bytes + tensor.nbytes() / 2).find(" hg ") != std::string::npos;
}

// More than malloc ever keeps (64 MB), so that each is a mapping of its own.
at::Tensor large() { return at::ones({20 << 20}); }

TEST(LargeMemory, RegionsAskForLargePagesInBothRunsAndTheRestOfTheStepDoesNot) {
  const at::Tensor outside = large();
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage") ||
      flags_of_mapping(outside.const_data_ptr()).empty()) {
    GTEST_SKIP() << "the system has no large pages, or does not show the flags of mappings";
  }
  int advised_runs = 0;
  const auto f = [&](const at::Tensor& x) {
    const at::Tensor inside = large();
    advised_runs += is_advised(inside) ? 1 : 0;
    return (x * inside.sum()).exp();
  };
  const at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor y = checkpoint(f, x).sum();
  y.backward();
  EXPECT_EQ(advised_runs, 2);
  EXPECT_FALSE(is_advised(outside));
  const at::Tensor after = large();
  EXPECT_FALSE(is_advised(after));
}

}  // namespace
}  // namespace reprise
