// Counter-based draws instead of a generator with a state: nothing has to be saved to go on.
#include "apps/cli/training/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "apps/cli/training/draws.h"

namespace reprise::app {

namespace {

std::size_t place_count(std::size_t text_size, std::int64_t context) {
  return text_size - static_cast<std::size_t>(context);
}

}  // namespace

std::vector<std::size_t> random_starts(std::int64_t seed, std::int64_t index, std::int64_t batch,
                                       std::size_t text_size, std::int64_t context) {
  std::vector<std::size_t> starts;
  starts.reserve(static_cast<std::size_t>(batch));
  const auto first = static_cast<std::uint64_t>(index) * static_cast<std::uint64_t>(batch);
  for (std::int64_t row = 0; row < batch; ++row) {
    const std::uint64_t draw = splitmix64(splitmix64(static_cast<std::uint64_t>(seed)) + first +
                                          static_cast<std::uint64_t>(row));
    starts.push_back(draw % place_count(text_size, context));
  }
  return starts;
}

std::vector<std::size_t> even_starts(std::int64_t count, std::size_t text_size,
                                     std::int64_t context) {
  const std::size_t places = place_count(text_size, context);
  const std::size_t used = std::min(static_cast<std::size_t>(count), places);
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < used; ++i) starts.push_back(i * places / used);
  return starts;
}

Batch cut(std::string_view text, const std::vector<std::size_t>& starts, std::int64_t context,
          c10::Device device) {
  const auto rows = static_cast<std::int64_t>(starts.size());
  Batch batch{at::empty({rows, context}, at::kLong), at::empty({rows, context}, at::kLong)};
  auto* tokens = batch.tokens.mutable_data_ptr<std::int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<std::int64_t>();
  const auto byte = [](char c) { return static_cast<std::int64_t>(static_cast<unsigned char>(c)); };
  for (const std::size_t start : starts) {
    const auto window = text.substr(start, static_cast<std::size_t>(context) + 1);
    tokens = std::transform(window.begin(), window.end() - 1, tokens, byte);
    targets = std::transform(window.begin() + 1, window.end(), targets, byte);
  }
  return {batch.tokens.to(device), batch.targets.to(device)};
}

}  // namespace reprise::app
