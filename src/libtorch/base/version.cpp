// Versions, compiled in so that a program can tell what it was linked with.

#include "reprise/reprise.h"

#include <torch/headeronly/version.h>

#define REPRISE_TEXT_(x) #x
#define REPRISE_TEXT(x) REPRISE_TEXT_(x)

namespace reprise {

const char* version() { return REPRISE_VERSION; }

const char* libtorch_version() {
  return REPRISE_TEXT(TORCH_VERSION_MAJOR) "." REPRISE_TEXT(TORCH_VERSION_MINOR) "." REPRISE_TEXT(
      TORCH_VERSION_PATCH);
}

}  // namespace reprise
