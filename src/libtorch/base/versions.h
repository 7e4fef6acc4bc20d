// What differs between the versions of LibTorch that reprise is built for, 2.11 to 2.15, one comment a difference. No
// other file of src/ asks for the version.
#pragma once

#include <ATen/Context.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#define REPRISE_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||          \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace reprise::libtorch {

// Autograd nodes are held by shared_ptr up to 2.12, and by intrusive_ptr from 2.13 on.
using NodePointer = decltype(torch::autograd::Edge::function);
template <class T>
std::weak_ptr<T> weak_pointer(const std::shared_ptr<T>& pointer) {
  return pointer;
}
template <class T>
c10::weak_intrusive_ptr<T> weak_pointer(const c10::intrusive_ptr<T>& pointer) {
  return c10::weak_intrusive_ptr<T>(pointer);
}
using WeakNodePointer = decltype(weak_pointer(std::declval<NodePointer>()));
// A new node of ours.
template <class OurNode, class Pointer = NodePointer>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new OurNode);
  } else {
    return Pointer(c10::make_intrusive<OurNode>());
  }
}

// Up to 2.12 Python's dispatch key comes after Fake, and Python's handlers (dispatch modes, tensor subclasses) run with all
// keys before theirs off.
inline constexpr bool kPythonsKeyComesAfterFake = c10::DispatchKey::Python < c10::DispatchKey::Fake;

// The operator that autograd's errors name: "MulBackward0", or "Mul" where LibTorch has such names.
template <class Node>
std::string forward_name_of(const Node& node) {
  if constexpr (requires { node.forward_op_name(); }) {
    return node.forward_op_name();
  } else {
    return node.name();
  }
}

#if REPRISE_TORCH_AT_LEAST(2, 13)
// From 2.13 on a kind of thread-local information is the address of a name.
inline c10::DebugInfoKind thread_state_kind() {
  static constexpr std::string_view name = "REPRISE_THREAD_STATE";
  return c10::DebugInfoKind(&name);
}
#else
// Before 2.13 the kinds are a closed enumeration; this one is meant for outsiders' tests.
inline c10::DebugInfoKind thread_state_kind() { return c10::DebugInfoKind::TEST_INFO_2; }
#endif

#if REPRISE_TORCH_AT_LEAST(2, 12)
// Lets a storage be read again whose reads were made errors.
inline void allow_reads(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#else
// 2.11 can make the reads of a storage errors, but cannot take that back: the flag is private. An explicit
// instantiation may name private members. The text that stays behind is shown only where the flag is set.
template <bool c10::StorageImpl::*flag, void (c10::StorageImpl::*refresh)()>
struct ReadsOfStorage {
  friend void allow_reads(c10::StorageImpl& storage) {
    storage.*flag = false;
    (storage.*refresh)();
  }
};
template struct ReadsOfStorage<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                               &c10::StorageImpl::refresh_has_data_ptr_check>;
void allow_reads(c10::StorageImpl& storage);
#endif

#if REPRISE_TORCH_AT_LEAST(2, 12)
// Whether a graph records the work of the stream. Throws c10::Error for a device that cannot tell.
inline bool is_recorded_by_graph(const c10::Stream& stream) { return stream.is_capturing(); }
#else
// A stream of 2.11 cannot tell. The default generator of a CUDA device does for the current stream: it refuses to give
// its offset while a graph records.
inline bool is_recorded_by_graph(const c10::Stream& stream) {
  at::Generator generator = at::globalContext().defaultGenerator(stream.device());
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.get_offset();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}
#endif

}  // namespace reprise::libtorch
