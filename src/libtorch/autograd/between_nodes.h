// Where autograd's engine adds up the gradients of a tensor that was used several times: between
// the functions of two nodes. Only there does it choose by the tensors' device.
#pragma once

#include <cstdint>

namespace reprise::libtorch {

// While it lives, the functions of nodes are told from what the engine does between them, in
// backward calls that this thread makes.
class NodeFunctionsSeen {
 public:
  NodeFunctionsSeen();
  ~NodeFunctionsSeen();
  NodeFunctionsSeen(const NodeFunctionsSeen&) = delete;
  NodeFunctionsSeen& operator=(const NodeFunctionsSeen&) = delete;

 private:
  std::uint64_t callback_;
};

// Whether a backward call runs on this thread and is between two nodes' functions; also in hooks of
// tensors and nodes. Calls that a node makes are told from its function once the engine's front is
// in place (ensure_engine_front()).
bool is_between_nodes();

}  // namespace reprise::libtorch
