#include "libtorch/base/backends_only.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace reprise::libtorch {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Everything above the backends.
const DispatchKeySet& above_backends() {
  static const DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      DispatchKeySet({DispatchKey::Fake, DispatchKey::TESTING_ONLY_GenericMode,
                      DispatchKey::CustomRNGKeyId, kEffectKey, DispatchKey::Python,
                      DispatchKey::PythonTLSSnapshot, DispatchKey::PythonDispatcher,
                      DispatchKey::FuncTorchDynamicLayerFrontMode,
                      DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::Functionalize});
  return keys;
}

}  // namespace

BackendsOnly::BackendsOnly() : guard_(above_backends()) {}
BackendsOnly::BackendsOnly(DispatchKeySet but) : guard_(above_backends() - but) {}

}  // namespace reprise::libtorch
