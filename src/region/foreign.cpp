#include "region/foreign.h"

#include <reprise/error.h>

namespace reprise::region {

Foreign& foreign() {
  static Foreign foreign;
  return foreign;
}

void refuse(const detail::RegionCall& call, const Mismatch& mismatch) {
  if (foreign().report != nullptr) foreign().report(call, mismatch);
  throw DeterminismError(mismatch.text);
}

}  // namespace reprise::region
