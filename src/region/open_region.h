// A region, not reentrant, whose function the caller runs between the constructor and end(): the
// call's run_first() is never called. Without end() the region is dropped.
#pragma once

#include <reprise/checkpoint.h>

#include <memory>

namespace reprise::region {

class OpenRegion {
 public:
  OpenRegion(const CheckpointOptions& options, const std::shared_ptr<detail::RegionCall>& call);
  ~OpenRegion();
  OpenRegion(const OpenRegion&) = delete;
  OpenRegion& operator=(const OpenRegion&) = delete;
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise::region
