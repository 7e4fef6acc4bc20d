#include "libtorch/memory/worker_streams.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "libtorch/memory/managed_memory.h"

namespace reprise::libtorch {
namespace {

c10::Stream current_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void lend(const at::Tensor& tensor, c10::Stream stream) {
  if (!tensor.has_storage()) return;
  // Allocators know their memory by its face, which a manager covers.
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  const MemoryManager* const manager = ManagedMemory::manager_of(storage);
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(
          manager != nullptr ? ManagedMemory::memory_of(*manager) : storage.data_ptr(), stream);
}

// Memory comes from the target's stream, and the copy runs on the source's, after both: as CUDA has
// it, which others need not do by themselves.
at::Tensor copied(const at::Tensor& tensor, const at::TensorOptions& options,
                  const StreamPoints& made, c10::Stream target, c10::Stream source) {
  StreamPoints allocated;
  at::Tensor copy;
  {
    const c10::StreamGuard guard(target);
    copy = at::empty_like(tensor, options);
    allocated.add(target);
  }
  const c10::StreamGuard guard(source);
  for (const StreamPoints* points : {&made, &std::as_const(allocated)}) points->hold_back(source);
  lend(copy, source);
  lend(tensor, source);
  copy.copy_(tensor, /*non_blocking=*/true);
  return copy;
}

}  // namespace

void StreamPoints::add(c10::Stream stream) {
  std::erase_if(points_, [&](const auto& point) { return point.first == stream; });
  try {
    c10::Event event(stream.device_type());
    event.record(stream);
    points_.emplace_back(stream, std::move(event));
  } catch (const c10::Error&) {
    // A device without events: the host waits.
    stream.synchronize();
  }
}

void StreamPoints::add_current(c10::Device device) {
  if (!device.is_cpu()) add(current_of(device));
}

void StreamPoints::hold_back_current(c10::Device device) const {
  if (!device.is_cpu()) hold_back(current_of(device));
}

void StreamPoints::hold_back(c10::Stream stream) const {
  for (const auto& [made_on, event] : points_) {
    if (made_on != stream) event.block(stream);
  }
}

WorkerStreams::WorkerStreams(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  try {
    compute_ = guard.getStreamFromGlobalPool(device);
    for (auto& stream : copies_) stream = guard.getStreamFromGlobalPool(device);
  } catch (const c10::Error&) {
    // A device with one stream, for all workers.
    compute_ = guard.getStream(device);
    for (auto& stream : copies_) stream = compute_;
  }
}

void WorkerStreams::drain() const {
  if (compute_) compute_->synchronize();
  for (const auto& stream : copies_) {
    if (stream) stream->synchronize();
  }
}

Shipment ship(std::vector<at::Tensor> tensors, const WorkerStreams* sender,
              const WorkerStreams* receiver, WorkerStreams::Way way) {
  const c10::AutoGradMode no_history(false);
  StreamPoints made;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) made.add_current(tensor.device());
  }
  std::vector<c10::Stream> used;  // by copies
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined() || receiver == nullptr || tensor.device() == receiver->device()) continue;
    const auto options = tensor.options().device(receiver->device());
    const bool requires_grad = tensor.requires_grad();
    if (receiver->device().is_cpu()) {
      // The host reads what it is given at once.
      tensor = tensor.to(options).set_requires_grad(requires_grad);
      continue;
    }
    // Tensors of the caller are copied on the caller's stream.
    const bool has_copies = sender != nullptr && tensor.device() == sender->device();
    const c10::Stream target = *receiver->copies(way);
    c10::Stream source = target;  // copies from the host
    if (!tensor.is_cpu()) source = has_copies ? *sender->copies(way) : current_of(tensor.device());
    tensor = copied(tensor, options, made, target, source).set_requires_grad(requires_grad);
    for (const c10::Stream stream : {target, source}) used.push_back(stream);
  }
  Shipment shipment{std::move(tensors), std::move(made)};
  for (const c10::Stream stream : used) shipment.ready.add(stream);
  return shipment;
}

std::vector<at::Tensor> take(Shipment shipment) {
  for (const at::Tensor& tensor : shipment.tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    shipment.ready.hold_back_current(tensor.device());
    lend(tensor, current_of(tensor.device()));
  }
  return std::move(shipment.tensors);
}

void lend_gradients(const std::vector<at::Tensor>& parameters, const WorkerStreams& worker) {
  if (!worker.compute_) return;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || gradient.device() != worker.device()) continue;
    for (const c10::Stream stream : {*worker.compute_, current_of(worker.device())}) {
      lend(gradient, stream);
    }
  }
}

}  // namespace reprise::libtorch
