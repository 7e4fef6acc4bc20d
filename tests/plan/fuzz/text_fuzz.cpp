// libFuzzer's entry; see scripts/fuzz.
#include <cstddef>
#include <cstdint>

#include "tests/plan/io/hostile_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  reprise::plan::read_hostile({reinterpret_cast<const char*>(data), size});
  return 0;
}
