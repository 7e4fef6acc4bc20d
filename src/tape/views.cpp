// Views: what is noted of them, although they read no bytes.
#include <mutex>

#include "libtorch/autograd/engine.h"
#include "libtorch/base/tensor_form.h"
#include "libtorch/memory/memory_limit.h"
#include "libtorch/operators/operator_schemas.h"
#include "tape/recorder.h"

namespace reprise::tape {

using libtorch::OperatorCall;
using Lock = std::unique_lock<libtorch::LimitMutex>;

// AccumulateGrad detaches what it takes for a gradient. Dropping that would be in vain: it is wanted
// to the end of the step. Others that detach in backward are no such sign: torch.utils.checkpoint
// does it with all that it recomputes.
void Recorder::note_gradient(const OperatorCall& call) {
  static const c10::FunctionSchema* const detach =
      libtorch::schemas_named("aten::detach.default").front();
  if (&call.schema() != detach || !libtorch::is_accumulating()) return;
  const at::Tensor& tensor = call.arguments()[0].toTensor();
  if (!tensor.defined()) return;
  const Lock lock(libtorch::limit_mutex());
  if (!tape_.manages(tensor)) return;
  if (Cell* const cell = Tape::cell_of(tensor)) {
    cell->tape.restore(*cell->value);
    if (cell->tape.log) cell->tape.log->restored(*cell->value);
    cell->tape.make_root(*cell->value);
    cell->is_gradient = true;
  }
}

// Of a nested tensor the shapes of its parts, which stand in tables that are read by pointer
// whenever anybody asks for its form.
void Recorder::keep_shapes(const at::Tensor& tensor) {
  if (!tensor.is_nested() || !tensor.unsafeGetTensorImpl()->has_storage()) return;
  const c10::Storage& elements = tensor.unsafeGetTensorImpl()->unsafe_storage();
  libtorch::visit_storages(tensor, [&](const c10::Storage& storage) {
    if (!storage.is_alias_of(elements)) Tape::keep_for_pointers(storage);
  });
}

// The one question that looks at the data pointer. What the counting allocator hands out is never
// pinned by a device.
void Recorder::answer_for_dropped(OperatorCall& call) const {
  static const c10::FunctionSchema* const is_pinned =
      libtorch::schemas_named("aten::is_pinned").front();
  if (&call.schema() != is_pinned || tape_.device_side() != nullptr) return;
  const at::Tensor& tensor = call.arguments()[0].toTensor();
  if (!tensor.defined()) return;
  const Lock lock(libtorch::limit_mutex());
  if (!tape_.manages(tensor)) return;
  const Cell* const cell = Tape::cell_of(tensor);
  if (cell != nullptr && cell->own && !cell->value->has_bytes()) call.answer({c10::IValue(false)});
}

// A row of a table of lengths is read by pointer as lengths are.
void Recorder::note_views(OperatorCall& call) {
  call.proceed();
  const auto note = [&](const at::Tensor& tensor) {
    if (tape_.device_side() != nullptr || !tensor.defined()) return;
    if (!Tape::holds_whole_numbers(tensor)) return;
    const Lock lock(libtorch::limit_mutex());
    if (tape_.is_closed() || !tape_.may_be_read_by_pointer(tensor)) return;
    Tape::keep_for_pointers(tensor.storage());
  };
  for (const c10::IValue& result : call.results()) {
    if (result.isTensor()) {
      note(result.toTensor());
    } else if (result.isTensorList()) {
      for (const c10::IValue& each : result.toListRef()) note(each.toTensor());
    }
  }
}

}  // namespace reprise::tape
