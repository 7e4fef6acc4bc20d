#include "tape/parking.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <reprise/budget.h>
#include <reprise/store.h>

#include <cstring>
#include <exception>
#include <typeinfo>
#include <utility>

#include "libtorch/base/backends_only.h"
#include "libtorch/memory/counting_allocator.h"
#include "tape/own_time.h"

namespace reprise::tape {
namespace {

// A store that has not been measured is taken for one that moves a gigabyte a second, and what it
// has moved so far counts from some megabytes on.
constexpr double kFirstGuess = 1e-9;
constexpr double kGuessWeighs = 4 << 20;

constexpr const char* kUnknown = "the store has thrown something that is no std::exception";

}  // namespace

Parking::Parking(std::shared_ptr<Store> store, c10::Device device)
    : store_(std::move(store)),
      device_(device),
      accelerator_(device.is_cpu() ? std::nullopt
                                   : std::optional<libtorch::AcceleratorDevice>(device)) {
  if (!store_->takes(device_)) {
    throw UsageError("BudgetOptions.store: " + store_->name() + " does not take tensors in " +
                     (accelerator_ ? "memory of " + device_.str() + "; give it a host_store()"
                                   : "host memory; give it a disk_store()"));
  }
  if (!store_->exact()) {
    throw UsageError("BudgetOptions.store: " + store_->name() +
                     " does not give values back bit by bit, and the step would not be the plain "
                     "one; give it an exact store");
  }
  // Its class is hidden, and its name anybody's.
  const std::shared_ptr<Store> memory = memory_store();
  const Store &given = *store_, &keeps_in_memory = *memory;
  if (typeid(given) == typeid(keeps_in_memory)) {
    throw UsageError("BudgetOptions.store: the " + store_->name() +
                     " keeps values where they are, in memory that the budget counts, so that "
                     "parking there would free nothing; give it a disk_store(), or none");
  }
  if (dynamic_cast<const CompressedStore*>(&given) != nullptr) {
    throw UsageError("BudgetOptions.store: the " + store_->name() +
                     " needs memory that the budget counts at the moment that there is none, and "
                     "the budget itself keeps values of two kinds in a bit an element; give it a "
                     "disk_store(), or none");
  }
}

bool Parking::is_own(const c10::Storage& storage) const {
  return accelerator_ ? accelerator_->is_own(storage.data_ptr())
                      : libtorch::is_counted_memory(storage.data_ptr());
}

c10::Storage Parking::copy_of(const c10::Storage& storage, std::int64_t bytes) const {
  if (accelerator_) return accelerator_->copy_of(storage.data(), bytes);
  auto* const allocator = c10::GetAllocator(c10::kCPU);
  c10::Storage copy(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
                    allocator->allocate(static_cast<std::size_t>(bytes)), allocator,
                    /*resizable=*/false);
  std::memcpy(copy.mutable_data(), storage.data(), static_cast<std::size_t>(bytes));
  return copy;
}

double Parking::Measured::per_byte() const {
  return (seconds + kFirstGuess * kGuessWeighs) / (static_cast<double>(bytes) + kGuessWeighs);
}

double Parking::seconds(std::int64_t bytes) const {
  return (out_.per_byte() + in_.per_byte()) * static_cast<double>(bytes);
}

// Once: a full disk stays full.
void Parking::warn(const char* what, const char* why) {
  if (std::exchange(warned_, true)) return;
  TORCH_WARN("memory budget: a value could not be ", what, " and is made again instead: ", why);
}

// Measures one, whatever it ends in, without the room that the store's own memory may need.
class Parking::Transfer {
 public:
  Transfer(Measured& measured, std::int64_t bytes, Seconds& waited)
      : measured_(measured), bytes_(bytes), waited_(waited) {}
  ~Transfer() {
    const double seconds = watch_.seconds();
    measured_.seconds += seconds;
    measured_.bytes += bytes_;
    waited_ += Seconds(seconds);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  Measured& measured_;
  const std::int64_t bytes_;
  Seconds& waited_;
  const WorkWatch watch_;
};

std::unique_ptr<ParkedTensor> Parking::park(c10::DataPtr memory, std::int64_t bytes,
                                            Seconds& waited) {
  const Transfer transfer(out_, bytes, waited);
  // A store's own operators are none of the step's.
  const libtorch::BackendsOnly unseen;
  try {
    return store_->park(libtorch::flat_tensor(std::move(memory), bytes, device_));
  } catch (const std::exception& error) {
    warn("parked", error.what());
  } catch (...) {
    warn("parked", kUnknown);
  }
  return nullptr;
}

c10::Storage Parking::load(std::unique_ptr<ParkedTensor>& parked, Seconds& waited) {
  const std::int64_t bytes = parked->bytes().count;
  const Transfer transfer(in_, bytes, waited);
  c10::Storage storage;
  const libtorch::BackendsOnly unseen;
  const auto give_up = [&](const char* why) {
    parked.reset();
    warn("brought back", why);
    return c10::Storage();
  };
  try {
    at::Tensor tensor = parked->load();
    storage = tensor.storage();
    tensor.reset();
    // The store may be about to read it, or have it from elsewhere.
    if (storage.use_count() > 1 || static_cast<std::int64_t>(storage.nbytes()) != bytes ||
        !is_own(storage)) {
      storage = copy_of(storage, bytes);
    }
  } catch (const BudgetError&) {
    throw;
  } catch (const std::exception& error) {
    return give_up(error.what());
  } catch (...) {
    return give_up(kUnknown);
  }
  parked.reset();
  return storage;
}

void Parking::flush(Seconds& waited) {
  const Transfer transfer(out_, 0, waited);
  const libtorch::BackendsOnly unseen;
  try {
    store_->flush();
  } catch (const std::exception& error) {
    warn("parked", error.what());
  } catch (...) {
    warn("parked", kUnknown);
  }
}

}  // namespace reprise::tape
