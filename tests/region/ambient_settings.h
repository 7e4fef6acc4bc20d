// Every setting of the process or thread that a kernel can read and a program can change, and a
// kernel that reads them all: what it makes shows under which of them it ran.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <cfenv>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "libtorch/base/versions.h"

namespace reprise::testing {

struct AmbientSetting {
  std::string name;
  // Gives it another value, or (false) that of a process that begins.
  std::function<void(bool other)> set;
  std::function<double()> get;
};

inline void PrintTo(const AmbientSetting& setting, std::ostream* out) { *out << setting.name; }

inline const std::vector<AmbientSetting>& ambient_settings() {
  static const auto* settings = [] {
    auto* made = new std::vector<AmbientSetting>;
    at::Context& context = at::globalContext();
    const auto add = [&](std::string name, auto set, auto get) {
      made->push_back({std::move(name), set, [get] { return static_cast<double>(get()); }});
    };
    // A flag that is on or off at first.
    const auto flag = [&](std::string name, void (at::Context::*set)(bool),
                          bool (at::Context::*get)() const, bool first) {
      add(
          std::move(name), [&context, set, first](bool other) { (context.*set)(other != first); },
          [&context, get] { return (context.*get)(); });
    };
    using at::Context;
    flag("CuDNN", &Context::setUserEnabledCuDNN, &Context::userEnabledCuDNN, true);
    flag("Mkldnn", &Context::setUserEnabledMkldnn, &Context::userEnabledMkldnn, true);
    flag("Nnpack", &Context::setUserEnabledNNPACK, &Context::userEnabledNNPACK, true);
    flag("BenchmarkCuDNN", &Context::setBenchmarkCuDNN, &Context::benchmarkCuDNN, false);
    flag("DeterministicCuDNN", &Context::setDeterministicCuDNN, &Context::deterministicCuDNN,
         false);
    flag("DeterministicMkldnn", &Context::setDeterministicMkldnn, &Context::deterministicMkldnn,
         false);
    flag("FlashAttention", &Context::setSDPUseFlash, &Context::userEnabledFlashSDP, true);
    flag("EfficientAttention", &Context::setSDPUseMemEfficient,
         &Context::userEnabledMemEfficientSDP, true);
    flag("MathAttention", &Context::setSDPUseMath, &Context::userEnabledMathSDP, true);
    flag("CuDNNAttention", &Context::setSDPUseCuDNN, &Context::userEnabledCuDNNSDP, true);
    flag("OtherAttention", &Context::setSDPUseOverrideable, &Context::userEnabledOverrideableSDP,
         true);
    flag("ReducedMathAttention", &Context::setAllowFP16BF16ReductionMathSDP,
         &Context::allowFP16BF16ReductionMathSDP, false);
    flag("HalfAccumulationCuBLAS", &Context::setAllowFP16AccumulationCuBLAS,
         &Context::allowFP16AccumulationCuBLAS, false);
    flag("FillUninitialized", &Context::setDeterministicFillUninitializedMemory,
         &Context::deterministicFillUninitializedMemory, true);
    flag("ReleaseWeights", &Context::setReleaseWeightsWhenPrepacking,
         &Context::releaseWeightsWhenPrepacking, false);
    add(
        "Deterministic",
        [&context](bool other) { context.setDeterministicAlgorithms(other, other); },
        [&context] {
          return context.deterministicAlgorithms() + 2 * context.deterministicAlgorithmsWarnOnly();
        });
    add(
        "MatmulPrecision",
        [&context](bool other) { context.setFloat32MatmulPrecision(other ? "medium" : "highest"); },
        [&context] { return context.float32MatmulPrecision(); });
    // Not by setFloat32MatmulPrecision(), to which they would be in contradiction.
    using Backend = at::Float32Backend;
    using Op = at::Float32Op;
    using Precision = at::Float32Precision;
    const auto precision = [&](std::string name, Backend backend, Op op, Precision first,
                               Precision second) {
      add(
          std::move(name),
          [&context, backend, op, first, second](bool other) {
            context.setFloat32Precision(backend, op, other ? second : first);
          },
          [&context, backend, op] { return context.float32Precision(backend, op); });
    };
    precision("MkldnnConvolutions", Backend::MKLDNN, Op::CONV, Precision::NONE, Precision::BF16);
    precision("MkldnnRnns", Backend::MKLDNN, Op::RNN, Precision::NONE, Precision::BF16);
    precision("CudaConvolutions", Backend::CUDA, Op::CONV, Precision::TF32, Precision::IEEE);
    add(
        "HalfReductionCuBLAS",
        [&context](bool other) { context.setAllowFP16ReductionCuBLAS(!other); },
        [&context] { return context.allowFP16ReductionCuBLAS(); });
    add(
        "Bfloat16ReductionCuBLAS",
        [&context](bool other) { context.setAllowBF16ReductionCuBLAS(!other); },
        [&context] { return context.allowBF16ReductionCuBLAS(); });
    add(
        "BenchmarkLimitCuDNN",
        [&context](bool other) { context.setBenchmarkLimitCuDNN(other ? 700 : 10); },
        [&context] { return context.benchmarkLimitCuDNN(); });
    add(
        "Multiprocessors",
        [&context](bool other) {
          context._setSMCarveout_EXPERIMENTAL(other ? std::optional<std::int32_t>(7)
                                                    : std::nullopt);
        },
        [&context] { return context._SMCarveout_EXPERIMENTAL().value_or(-1); });
#if REPRISE_TORCH_AT_LEAST(2, 13)
    add(
        "DepthwiseCuDNN",
        [&context](bool other) {
          context.setCuDNNDepthwiseKernel(other ? at::CuDNNDepthwiseKernel::NATIVE
                                                : at::CuDNNDepthwiseKernel::AUTO);
        },
        [&context] { return context.cudnnDepthwiseKernel(); });
#endif
    add(
        "OrderOfAttention",
        [&context](bool other) {
          context.setSDPPriorityOrder(other ? std::vector<std::int64_t>{0, 1, 2, 3, 4}
                                            : std::vector<std::int64_t>{1, 2, 0, 3, 4});
        },
        [&context] { return context.sDPPriorityOrder()[0]; });
    const at::QEngine engine = context.qEngine();
    const at::QEngine another = engine == at::kONEDNN ? at::kX86 : at::kONEDNN;
    add(
        "QuantizedEngine",
        [&context, engine, another](bool other) { context.setQEngine(other ? another : engine); },
        [&context] { return context.qEngine(); });
    add(
        "SparseInvariants",
        [&context](bool other) {
          context.setCheckSparseTensorInvariants(other ? std::optional(true) : std::nullopt);
        },
        [&context] { return context.checkSparseTensorInvariants().value_or(false); });
    add(
        "DefaultDtype",
        [](bool other) {
          c10::set_default_dtype(c10::scalarTypeToTypeMeta(other ? c10::kDouble : c10::kFloat));
        },
        [] { return c10::get_default_dtype_as_scalartype(); });
    add(
        "Threads", [](bool other) { at::set_num_threads(other ? 2 : 1); },  // of a test that begins
        [] { return at::get_num_threads(); });
    add(
        "FlushDenormal", [&context](bool other) { context.setFlushDenormal(other); },
        [] {
          volatile float small = 1e-38F;
          return small * 0.01F;
        });
    add(
        "Rounding", [](bool other) { std::fesetround(other ? FE_DOWNWARD : FE_TONEAREST); },
        [] {
          // To the nearest is upwards here.
          volatile float three = 3;
          return 1 / three;
        });
    add(
        "Autocast",
        [](bool other) {
          at::autocast::set_autocast_enabled(at::kCPU, other);
          at::autocast::set_autocast_dtype(at::kCPU, other ? at::kHalf : at::kBFloat16);
        },
        [] {
          return at::autocast::is_autocast_enabled(at::kCPU)
                     ? static_cast<double>(at::autocast::get_autocast_dtype(at::kCPU))
                     : -1;
        });
    // From now on setting them back gives what was there: LibTorch notes a precision that was asked
    // for apart from one that never was.
    for (const AmbientSetting& setting : *made) {
      setting.set(true);
      setting.set(false);
    }
    return made;
  }();
  return *settings;
}

inline std::vector<double> read_ambient_settings() {
  std::vector<double> values;
  for (const AmbientSetting& setting : ambient_settings()) values.push_back(setting.get());
  return values;
}

// As a kernel would: the values as a tensor.
inline at::Tensor ambient_kernel(const at::Tensor& like) {
  const std::vector<double> values = read_ambient_settings();
  const at::Tensor result =
      at::empty({static_cast<std::int64_t>(values.size())}, like.options().dtype(at::kDouble));
  std::copy(values.begin(), values.end(), result.mutable_data_ptr<double>());
  return result;
}

}  // namespace reprise::testing
