// What happens to managed storages past operators: held, written to, freed.
#include <mutex>
#include <utility>

#include "libtorch/memory/limited_work.h"
#include "libtorch/memory/memory_limit.h"
#include "tape/tape.h"

namespace reprise::tape {

void Cell::released(c10::DataPtr memory) noexcept {
  if (is_orphan) {
    delete this;
  } else {
    tape.storage_died(*this, std::move(memory));
  }
}

// A write in place moves the holds to the new version (new_version()).
void Cell::hold() {
  const libtorch::AccountedWork accounted;
  std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  if (is_orphan) return;
  tape.restore(*value);
  if (DeviceSide* const side = tape.device_side()) side->used(*value);
  tape.pin(*value);
  if (tape.log) tape.log->held(*value);
  ++holds;
}

void Cell::before_write() {
  const libtorch::AccountedWork accounted;
  std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  if (is_orphan) return;
  if (value->producer == nullptr) tape.protect_readers(*value);
  tape.new_version(*this);
}

void Cell::release_hold() noexcept {
  std::lock_guard<libtorch::LimitMutex> lock(libtorch::limit_mutex());
  if (is_orphan) return;
  --holds;
  if (tape.log) tape.log->released(*value);
  tape.unpin(*value);
}

}  // namespace reprise::tape
