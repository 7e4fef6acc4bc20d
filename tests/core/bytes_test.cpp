// Printing and reading byte counts, and that the two fit together.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <reprise/bytes.h>
#include <reprise/error.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "tests/refusal.h"

namespace reprise {
namespace {

std::string refusal(const std::string& text) {
  return refusal_of([&] { parse_bytes(text); });
}

TEST(BytesToString, UsesDecimalUnitsWithOneDecimalPlace) {
  EXPECT_EQ(to_string(Bytes(0)), "0 B");
  EXPECT_EQ(to_string(Bytes(999)), "999 B");
  EXPECT_EQ(to_string(Bytes(1000)), "1.0 KB");
  EXPECT_EQ(to_string(Bytes(1024)), "1.0 KB");
  EXPECT_EQ(to_string(MB(53.6)), "53.6 MB");
  EXPECT_EQ(to_string(GB(1.2)), "1.2 GB");
  EXPECT_EQ(to_string(GB(4321)), "4.3 TB");
}

TEST(BytesToString, NeverPrintsAThousandOfAUnit) {
  EXPECT_EQ(to_string(Bytes(999'949)), "999.9 KB");
  EXPECT_EQ(to_string(Bytes(999'950)), "1.0 MB");
  EXPECT_EQ(to_string(Bytes(999'999'999)), "1.0 GB");
}

TEST(BytesToString, KeepsTheSign) {
  EXPECT_EQ(to_string(Bytes(-5)), "-5 B");
  EXPECT_EQ(to_string(-MB(2.5)), "-2.5 MB");
}

TEST(ParseBytes, ReadsEveryUnitInAnyCaseWithOrWithoutSpace) {
  EXPECT_EQ(parse_bytes("4096"), Bytes(4096));
  EXPECT_EQ(parse_bytes("4096B"), Bytes(4096));
  EXPECT_EQ(parse_bytes("400MB"), MB(400));
  EXPECT_EQ(parse_bytes("400 mb"), MB(400));
  EXPECT_EQ(parse_bytes("1.5 GiB"), GiB(1.5));
  EXPECT_EQ(parse_bytes("  .5KiB "), Bytes(512));
  EXPECT_EQ(parse_bytes("1e3 KB"), MB(1));
  EXPECT_EQ(parse_bytes("2TB"), GB(2000));
}

TEST(ParseBytes, ReadsALeadingSign) {
  EXPECT_EQ(parse_bytes("+64MB"), MB(64));
  EXPECT_EQ(parse_bytes("-3KB"), Bytes(-3000));
}

TEST(ParseBytes, RefusesWhatIsNoNumberOfBytesAndNamesTheUnits) {
  for (const char* text : {"", "  ", "MB", "+", "--3", "-+3", "nan", "inf", "0x10", "12 furlongs",
                           "3 MB 4", "1.2.3", "4 M", "1e400"}) {
    std::string message = refusal(text);
    EXPECT_NE(message.find("\"" + std::string(text) + "\" is not a number of bytes"),
              std::string::npos)
        << text << ": " << message;
    EXPECT_NE(message.find("KB, MB, GB, TB, KiB, MiB, GiB, TiB"), std::string::npos) << message;
  }
}

TEST(ParseBytes, RefusesMoreThanSixtyFourBits) {
  EXPECT_NE(refusal("10000000 TB").find("more than 9.2e18"), std::string::npos);
  EXPECT_EQ(parse_bytes("9e18").count, 9'000'000'000'000'000'000);
}

TEST(Bytes, PrintedSizesReadBackToWithinTheirLastPlace) {
  EXPECT_TRUE(rc::check([](std::int32_t mantissa, std::uint8_t shift) {
    Bytes bytes(static_cast<std::int64_t>(mantissa) << (shift % 20));
    Bytes back = parse_bytes(to_string(bytes));
    double error = std::abs(static_cast<double>((back - bytes).count));
    RC_ASSERT(error <= 0.0501 * std::abs(static_cast<double>(bytes.count)));
  }));
}

TEST(Bytes, TakeSharesRoundedTowardsZero) {
  EXPECT_EQ(Bytes(1000) * 1.1, Bytes(1100));
  EXPECT_EQ(Bytes(999) * 0.5, Bytes(499));
  EXPECT_EQ(Bytes(3) * 2, Bytes(6));
}

TEST(Bytes, AddSubtractAndCompareAsNumbers) {
  Bytes bytes = KB(2) + Bytes(5) - Bytes(1);
  bytes += Bytes(6);
  bytes -= Bytes(10);
  EXPECT_EQ(bytes, Bytes(2000));
  EXPECT_LT(Bytes(-1), Bytes(0));
  EXPECT_EQ(MiB(1) * 3, Bytes(3 << 20));
  EXPECT_DOUBLE_EQ(Bytes(1'500'000).megabytes(), 1.5);
}

}  // namespace
}  // namespace reprise
