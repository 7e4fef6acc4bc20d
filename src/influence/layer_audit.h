// An audit of the lossy tier: what noise in the layers' saved values does to the step's gradients,
// measured in backward of a step that is itself exact (docs/pgac.md, "Audits").
//
// Layers are audited one after the other, as backward comes to them, each by itself: from the exact
// gradient of its result its gradients are made once more, without noise, and with noise in what
// it saves; and from the gradient that backward of the lossy step would have brought there, those
// of the lossy step. So no more than one layer's values are needed at a time.
#pragma once

#include <reprise/bytes.h>
#include <reprise/sequential.h>
#include <reprise/store.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "influence/audit_findings.h"
#include "influence/routes.h"

namespace reprise::influence {

struct AuditSettings {
  std::shared_ptr<CompressedStore> store;  // makes the noise
  Bytes min_bytes;                         // of values that get any
  Routes routes;                           // of the lossy step
};

// One run of the layers of a step that is audited. Layers are not kept: backward runs them again,
// and so does the audit.
class AuditedRun : public std::enable_shared_from_this<AuditedRun> {
 public:
  AuditedRun(AuditSettings settings, std::shared_ptr<AuditFindings> findings);

  // What `call` makes of the input, exactly. The layer must not write to its input. Layers must be
  // given from the first to the last. Nothing is found in a backward that creates a graph.
  at::Tensor run(std::size_t layer, const TensorFunction& call, const at::Tensor& input);
  // Before it is run: the lossy step would not have compressed it.
  void keep(std::size_t layer) { settings_.routes[layer] = Compression::kExact; }

 private:
  class Reading;
  struct Ends;
  class Again;

  void audit(std::size_t layer, const Again& again, const at::Tensor& gradient);
  void try_to_audit(std::size_t layer, const Again& again, const at::Tensor& gradient);
  void take(std::size_t layer, const Ends& ends, Reading& reading, const at::Tensor& gradient);
  at::Tensor take_lossy_gradient(std::size_t layer);

  AuditSettings settings_;
  const std::shared_ptr<AuditFindings> findings_;
  std::mutex mutex_;
  // The gradient of each layer's result as the lossy step would have it, where it is another one:
  // from when the next layer was audited until this one is.
  std::vector<at::Tensor> lossy_gradients_;
};

// What `call` makes of the input, kept as it is. In backward it is found out whether the layer may
// be audited at all: not if there are hooks on tensors inside, or gradients are retained there.
at::Tensor run_inspected(std::size_t layer, const TensorFunction& call, const at::Tensor& input,
                         std::shared_ptr<AuditFindings> findings);

}  // namespace reprise::influence
