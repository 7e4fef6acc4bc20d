#include "pipeline/draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <reprise/pipeline.h>

#include <memory>
#include <mutex>

#include "libtorch/operators/draw_stream.h"

namespace reprise {
namespace pipeline {
namespace {

// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

}  // namespace

std::uint64_t seed_of_layer(std::uint64_t seed, std::int64_t micro_batch, std::int64_t layer) {
  return mixed(mixed(mixed(seed) + static_cast<std::uint64_t>(micro_batch)) +
               static_cast<std::uint64_t>(layer));
}

}  // namespace pipeline

struct DrawsOfLayer::Impl {
  std::shared_ptr<libtorch::DrawStream> stream = std::make_shared<libtorch::DrawStream>();
  libtorch::DrawStreamScope scope{stream};
};

DrawsOfLayer::DrawsOfLayer(std::uint64_t seed, std::int64_t micro_batch, std::int64_t layer)
    : impl_(std::make_unique<Impl>()) {
  impl_->stream->start(pipeline::seed_of_layer(seed, micro_batch, layer));
}

DrawsOfLayer::~DrawsOfLayer() = default;

std::uint64_t seed_of_pipeline() {
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

}  // namespace reprise
