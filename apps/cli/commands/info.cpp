// `reprise info`: shows what a bug report needs: versions, devices, generators, memory, and what of
// this machine reprise can use.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <reprise/memory.h>
#include <reprise/reprise.h>

#include <CLI/App.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "apps/cli/commands/commands.h"
#include "apps/cli/io/figures.h"
#include "apps/cli/io/option_group.h"
#include "apps/cli/io/streams.h"
#include "apps/cli/training/device.h"
#include "apps/cli/training/memory_need.h"

namespace reprise::app {

namespace {

// Allocates a probe, because another library may have set an allocator of its own.
bool allocations_are_counted() {
  constexpr std::int64_t kSize = 1 << 20;
  const Bytes before = live_bytes();
  const at::Tensor probe = at::empty({kSize}, at::kByte);
  return live_bytes() - before >= Bytes(kSize);
}

std::vector<std::string> cpu_features() {
  std::ifstream stream("/proc/cpuinfo");
  std::vector<std::string> found;
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      for (const char* known : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
        if (word == known) found.push_back(word);
      }
    }
    break;
  }
  return found;
}

std::vector<std::string> devices() {
  std::vector<std::string> all;
  std::istringstream list(available_devices());
  for (std::string name; std::getline(list >> std::ws, name, ',');) all.push_back(name);
  return all;
}

// Returns the devices whose generators a region can replay.
std::vector<std::string> generators() {
  std::vector<std::string> all;
  for (const std::string& name : devices()) {
    const at::Generator& generator = at::globalContext().defaultGenerator(c10::Device(name));
    if (generator.defined()) all.push_back(name);
  }
  return all;
}

nlohmann::json collect() {
  const auto accelerator = at::accelerator::getAccelerator();
  return {{"reprise", version()},
          {"libtorch", libtorch_version()},
          {"devices", devices()},
          {"accelerator", accelerator ? c10::DeviceTypeName(*accelerator, true) : "none"},
          {"generators", generators()},
          {"cpu_allocations_counted", allocations_are_counted()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads", at::get_num_threads()},
          {"memory_bytes", static_cast<std::int64_t>(physical_memory())},
          {"cpu_kernels", at::get_cpu_capability()},
          {"cpu_features", cpu_features()},
          {"onednn", at::globalContext().hasMKLDNN()},
          {"mkl", at::globalContext().hasMKL()},
          {"pinned_memory", accelerator.has_value()}};
}

std::string yes_or_no(bool value) { return value ? "yes" : "no"; }

void print(const nlohmann::json& info) {
  const auto list = [&](const char* key) {
    const auto values = info.at(key).get<std::vector<std::string>>();
    return values.empty() ? std::string("none") : fmt::format("{}", fmt::join(values, ", "));
  };
  Facts facts;
  facts.add("reprise", info.at("reprise"));
  facts.add("LibTorch", info.at("libtorch"));
  facts.add("devices", list("devices"));
  facts.add("random state replayed", list("generators"));
  facts.add("CPU memory counted",
            info.at("cpu_allocations_counted")
                ? "yes, every tensor"
                : "no: another CPU allocator is installed; peaks will read as zero");
  facts.add("memory", to_string(Bytes(info.at("memory_bytes").get<std::int64_t>())));
  facts.add("cores", fmt::format("{}, LibTorch uses {}", info.at("cores").get<unsigned>(),
                                 info.at("threads").get<int>()));
  facts.add("CPU kernels", fmt::format("{} ({})", info.at("cpu_kernels").get<std::string>(),
                                       list("cpu_features")));
  facts.add("oneDNN, MKL",
            fmt::format("{}, {}", yes_or_no(info.at("onednn")), yes_or_no(info.at("mkl"))));
  facts.add("pinned host memory", info.at("pinned_memory") ? "yes" : "no, there is no accelerator");
  print_result(facts.text());
}

struct InfoOptions {
  bool json = false;
};

void bind(CLI::App& command, InfoOptions& options) {
  OptionGroup output(command, "Output");
  output.flag("--json", options.json, "print one JSON object instead of a table");
}

int info(const InfoOptions& options) {
  const nlohmann::json collected = collect();
  options.json ? print_object(collected) : print(collected);
  return 0;
}

}  // namespace

void add_info(CLI::App& program, Chosen& chosen) {
  add_command<InfoOptions>(program, chosen, "info",
                           "Show versions, devices and what of this machine is used", info);
}

}  // namespace reprise::app
