// The version of the headers; reprise::version() is that of the library that was linked.
#pragma once

#define REPRISE_VERSION_MAJOR 0
#define REPRISE_VERSION_MINOR 1
#define REPRISE_VERSION_PATCH 0
#define REPRISE_VERSION "0.1.0"

namespace reprise {

const char* version();
// The LibTorch that the library was built against, as "2.13.0".
const char* libtorch_version();

}  // namespace reprise
