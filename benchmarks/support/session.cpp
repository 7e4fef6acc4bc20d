// Starts the peers and collects the figures; see session.h.
#include "benchmarks/support/session.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace reprise::bench {
namespace {

std::string python_program() {
  const char* chosen = std::getenv("REPRISE_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  const std::string configured = REPRISE_TORCH_PYTHON;
  return configured.empty() ? "python3" : configured;
}

}  // namespace

PeerProcess* Session::python() { return start(python_, /*meter=*/false); }

PeerProcess* Session::python_with_meter() { return start(python_with_meter_, /*meter=*/true); }

PeerProcess* Session::start(std::optional<std::unique_ptr<PeerProcess>>& peer, bool meter) {
  if (peer) return peer->get();
  std::vector<std::string> command = {
      python_program(), REPRISE_SOURCE_DIR "/benchmarks/peers/peer.py", "--device", device_.str()};
  if (meter && device_.is_cpu()) command.insert(command.end(), {"--meter", REPRISE_BENCH_METER});
  try {
    peer = std::make_unique<PeerProcess>(command);
    // Another version would be compared with ours, and its process could not load our meter.
    if (!(*peer)->greeting().starts_with(TORCH_VERSION)) {
      throw std::runtime_error(
          fmt::format("{} has torch {}", command.front(), (*peer)->greeting()));
    }
  } catch (const std::runtime_error& error) {
    peer = nullptr;
    if (!said_no_peer_) {
      std::cerr << fmt::format(
          "no Python peer, its figures stay empty: {}. Set REPRISE_PYTHON to a Python with torch "
          "{}.\n",
          error.what(), TORCH_VERSION);
    }
    said_no_peer_ = true;
  }
  return peer->get();
}

void Session::report(Figure figure) {
  if (json_) std::cout << to_json(figure) << std::endl;
  figures_.push_back(std::move(figure));
}

void Session::finish() const {
  if (!json_) std::cout << to_table(figures_);
}

bool Session::all_ok() const {
  return std::all_of(figures_.begin(), figures_.end(),
                     [](const Figure& figure) { return figure.ok().value_or(true); });
}

}  // namespace reprise::bench
