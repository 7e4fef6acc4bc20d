// The limit that binds is found among the machine's memory and the control groups above a process.
#include "core/machine_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace reprise {
namespace {

namespace fs = std::filesystem;

class MachineMemory : public testing::Test {
 protected:
  MachineMemory() {
    std::string name = (fs::temp_directory_path() / "reprise-test-XXXXXX").string();
    if (!mkdtemp(name.data())) std::abort();
    root = name;
  }
  ~MachineMemory() override { fs::remove_all(root); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }

  fs::path root;
};

TEST_F(MachineMemory, IsThePhysicalMemoryWithoutGroups) {
  const std::int64_t all = machine_memory(root);
  EXPECT_GT(all, std::int64_t{1} << 27);
  EXPECT_LE(machine_memory(), all);
}

TEST_F(MachineMemory, IsTheLeastLimitOfAGroupAndThoseAboveIt) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  EXPECT_EQ(machine_memory(root), machine_memory(root / "none"));
  write("sys/fs/cgroup/job/memory.max", "5000000\n");
  EXPECT_EQ(machine_memory(root), 5'000'000);
  write("sys/fs/cgroup/job/step/memory.max", "4000000\n");
  EXPECT_EQ(machine_memory(root), 4'000'000);
  write("sys/fs/cgroup/memory.max", "3000000\n");
  EXPECT_EQ(machine_memory(root), 3'000'000);
}

TEST_F(MachineMemory, KnowsTheFirstVersionToo) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\nnothing\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(machine_memory(root), machine_memory(root / "none"));
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000000\n");
  EXPECT_EQ(machine_memory(root), 7'000'000);
}

}  // namespace
}  // namespace reprise
