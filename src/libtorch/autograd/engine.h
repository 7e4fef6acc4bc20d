// The front of autograd's engine: the one place where LibTorch asks "are there hooks for saved
// tensors?".
//
// SavedVariable's constructor asks the default engine for hooks, and the default engine can be
// replaced. The front answers from the thread's state and forwards everything else to the engine
// that was in force before: LibTorch's own in a C++ program, PyTorch's in a Python process, which
// therefore keeps its GIL handling, its own hooks and its exceptions. The front runs no graph
// itself, so that it can be put in place at any time, also while other threads are in backward. It
// is never destroyed, as LibTorch's own engines are not: autograd's worker threads may outlive
// static destruction.
//
// When a backward call fails, LibTorch keeps the thread's tasks that have not run, with their
// gradients and nodes, until the thread calls backward again. The front frees them at once.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace reprise::libtorch {

// Puts the front in place, or back in place where PyTorch was imported after it. Cheap when it is
// there.
void ensure_engine_front();

// Frees what failed backward calls of this thread have left. For calls that the front has not seen:
// those before it was put in place, and all of Python. Outside of backward calls.
void free_leftovers_of_backward();

// The engine's thread of an accelerator drops the last gradients of a backward call some time after
// the caller goes on. Returns when it has. Nothing to do on the CPU.
void settle_backward(c10::Device device);

// Identifies the running backward call; -1 outside of one. Nested calls have ids of their own.
std::int64_t current_backward_id();

// True unless the running backward call was given `inputs`, or came from autograd::grad.
bool backward_accumulates();

// Whether the node that runs on this thread puts a gradient into a leaf (AccumulateGrad).
bool is_accumulating();

// Runs `callback` when the running backward call has finished without an error. Only inside one.
void at_end_of_backward(std::function<void()> callback);

}  // namespace reprise::libtorch
