// Quantities with their unit in the type: `Bytes` for memory and `Seconds` for time, so that a
// number of elements, megabytes or milliseconds cannot be passed by mistake.
//
//   reprise::MemoryBudget budget{reprise::GiB(8)};
//   std::cout << to_string(reprise::MB(53.6));      // "53.6 MB"
//
// Decimal units (KB, MB, GB) are powers of 1000, binary ones (KiB, MiB, GiB) powers of 1024.
// Printed figures are decimal.
#pragma once

#include <chrono>
#include <compare>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

// A duration. `.count()` is the plain number of seconds; every std::chrono duration converts to it.
using Seconds = std::chrono::duration<double>;

// A signed count of bytes; differences of two measurements may be negative.
struct Bytes {
  std::int64_t count = 0;

  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t bytes) : count(bytes) {}

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes operator-() const { return Bytes(-count); }
  constexpr Bytes& operator+=(Bytes other) { return count += other.count, *this; }
  constexpr Bytes& operator-=(Bytes other) { return count -= other.count, *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count + b.count); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count - b.count); }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) { return Bytes(a.count * n); }
  // A share of the bytes, or some percent more: rounded towards zero, as KiB() does.
  friend constexpr Bytes operator*(Bytes a, std::floating_point auto factor) {
    return Bytes(static_cast<std::int64_t>(static_cast<double>(a.count) * factor));
  }

  // The same quantity in decimal megabytes (1 MB = 1e6 bytes).
  constexpr double megabytes() const { return static_cast<double>(count) / 1e6; }
};

constexpr Bytes KB(double n) { return Bytes(static_cast<std::int64_t>(n * 1e3)); }
constexpr Bytes MB(double n) { return Bytes(static_cast<std::int64_t>(n * 1e6)); }
constexpr Bytes GB(double n) { return Bytes(static_cast<std::int64_t>(n * 1e9)); }
constexpr Bytes KiB(double n) { return Bytes(static_cast<std::int64_t>(n * 1024)); }
constexpr Bytes MiB(double n) { return Bytes(static_cast<std::int64_t>(n * 1024 * 1024)); }
constexpr Bytes GiB(double n) { return Bytes(static_cast<std::int64_t>(n * 1024 * 1024 * 1024)); }

// "512 B", "53.6 MB", "1.2 GB": decimal units, with one decimal place from a kilobyte on.
std::string to_string(Bytes bytes);

// Reads "400MB", "1.5 GiB" or "4096" (bytes), with an optional leading sign. Throws UsageError for
// any other text, with that text and the accepted units.
Bytes parse_bytes(std::string_view text);

}  // namespace reprise
