#include "apps/cli/experiment/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace reprise::app {

// What came before is the seed of what comes next.
void Fingerprint::add(std::string_view bytes) {
  value_ = XXH3_64bits_withSeed(bytes.data(), bytes.size(), value_);
}

void Fingerprint::add(std::uint64_t number) {
  value_ = XXH3_64bits_withSeed(&number, sizeof number, value_);
}

}  // namespace reprise::app
