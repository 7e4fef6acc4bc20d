// What all benchmarks of one call of the program share: the options, the Python peers, and the
// place where figures go.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/support/figure.h"
#include "benchmarks/support/peer_process.h"

namespace reprise::bench {

class Session {
 public:
  Session(bool json, bool quick, c10::Device device)
      : json_(json), quick_(quick), device_(device) {}

  // Short runs that show that everything works; their figures are rough.
  bool quick() const { return quick_; }

  // Steps are measured on this device. Benches without a device run with the CPU alone.
  c10::Device device() const { return device_; }

  // The Python process for times; null if there is no Python with torch, which is said once on
  // stderr.
  PeerProcess* python();
  // The one for bytes: on the CPU reprise's counting allocator is loaded there, so it serves no times. On an accelerator
  // bytes are those of LibTorch's statistics.
  PeerProcess* python_with_meter();

  // Prints the figure now as JSON, or keeps it for the table.
  void report(Figure figure);
  // Prints the table, unless JSON was asked for.
  void finish() const;
  // Whether no figure missed its bar.
  bool all_ok() const;

 private:
  PeerProcess* start(std::optional<std::unique_ptr<PeerProcess>>& peer, bool meter);

  bool json_;
  bool quick_;
  c10::Device device_;
  bool said_no_peer_ = false;
  std::optional<std::unique_ptr<PeerProcess>> python_;
  std::optional<std::unique_ptr<PeerProcess>> python_with_meter_;
  std::vector<Figure> figures_;
};

}  // namespace reprise::bench
