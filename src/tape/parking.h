// Where values go that are sooner brought back than made again: a store, and what it takes. Under
// libtorch::limit_mutex(), like the tape, also while a store moves bytes: stores do not allocate
// memory on threads of their own.
#pragma once

#include <c10/core/Storage.h>
#include <reprise/store.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "libtorch/memory/accelerator_device.h"

namespace reprise::tape {

class Parking {
 public:
  // For values on `device`.
  Parking(std::shared_ptr<Store> store, c10::Device device);

  // Of the step's time, for moving that many bytes out and in again: as it was so far.
  double seconds(std::int64_t bytes) const;

  // All of these add the seconds that they take to `waited`.
  //
  // Takes the bytes. Null if the store could not: they are lost then, and a warning has said so.
  std::unique_ptr<ParkedTensor> park(c10::DataPtr memory, std::int64_t bytes, Seconds& waited);
  // Ends the parking. An empty storage if the store could not bring them back. Where there is no
  // room for them they stay parked.
  c10::Storage load(std::unique_ptr<ParkedTensor>& parked, Seconds& waited);
  void flush(Seconds& waited);

  // Bytes that have left their values, and not their memory.
  std::int64_t waiting() const { return store_->statistics().waiting.count; }

 private:
  class Transfer;
  struct Measured {
    double seconds = 0;
    std::int64_t bytes = 0;
    double per_byte() const;
  };
  void warn(const char* what, const char* why);
  bool is_own(const c10::Storage& storage) const;
  c10::Storage copy_of(const c10::Storage& storage, std::int64_t bytes) const;

  const std::shared_ptr<Store> store_;
  const c10::Device device_;
  const std::optional<libtorch::AcceleratorDevice> accelerator_;
  Measured out_;
  Measured in_;
  bool warned_ = false;
};

}  // namespace reprise::tape
