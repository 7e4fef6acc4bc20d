// A number for all that was read, by which an experiment that is gone on with knows its data again.
#pragma once

#include <cstdint>
#include <string_view>

namespace reprise::app {

class Fingerprint {
 public:
  // In order; where one text ends and the next begins counts.
  void add(std::string_view bytes);
  void add(std::uint64_t number);
  // XXH3, 64 bits.
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace reprise::app
