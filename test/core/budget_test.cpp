#include "passes/plan/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace recals::plan {
namespace {

int64_t bytes(std::string_view text) {
  const auto result = parse_limit(text);
  const Limit* limit = std::get_if<Limit>(&result);
  return limit && limit->kind == Limit::Kind::Bytes ? limit->bytes : -2;
}

double fraction(std::string_view text) {
  const auto result = parse_limit(text);
  const Limit* limit = std::get_if<Limit>(&result);
  EXPECT_TRUE(limit && limit->kind == Limit::Kind::Share) << text;
  return limit ? limit->fraction : -1;
}

std::string refusal(std::string_view text) {
  const auto result = parse_limit(text);
  const BadBudget* bad = std::get_if<BadBudget>(&result);
  return bad ? bad->message : "accepted";
}

TEST(Budget, Bytes) {
  EXPECT_EQ(bytes("1"), 1);
  EXPECT_EQ(bytes("536870912"), 536870912);
  EXPECT_EQ(bytes("  42 "), 42);
  EXPECT_EQ(bytes("42B"), 42);
  EXPECT_EQ(bytes("4611686018427387904"), int64_t{1} << 62);
}

TEST(Budget, Sizes) {
  EXPECT_EQ(bytes("512MiB"), 536870912);
  EXPECT_EQ(bytes("1.5 GB"), 1500000000);
  EXPECT_EQ(bytes("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(bytes("1kB"), 1000);
  EXPECT_EQ(bytes("1KiB"), 1024);
  EXPECT_EQ(bytes("2TB"), 2000000000000);
  EXPECT_EQ(bytes("2 TiB"), int64_t{2} << 40);
  // Exact where a double is not: 0.29 * 1000000 and 1.1 * 1000000000.
  EXPECT_EQ(bytes("0.29MB"), 290000);
  EXPECT_EQ(bytes("1.1GB"), 1100000000);
  // Rounded down: 0.1 * 1024 = 102.4.
  EXPECT_EQ(bytes("0.1KiB"), 102);
  EXPECT_EQ(bytes("4194304TiB"), int64_t{1} << 62);
}

TEST(Budget, Words) {
  EXPECT_EQ(std::get<Limit>(parse_limit("min")).kind, Limit::Kind::Min);
  EXPECT_EQ(std::get<Limit>(parse_limit(" auto ")).kind, Limit::Kind::Auto);
  EXPECT_NE(refusal("Min"), "accepted");
  EXPECT_NE(refusal("auto%"), "accepted");
  EXPECT_NE(refusal("min1"), "accepted");
}

TEST(Budget, CaseMattersForTheBOnly) {
  EXPECT_EQ(bytes("1mib"), -2);
  EXPECT_EQ(bytes("1miB"), 1 << 20);
  EXPECT_EQ(bytes("1mIB"), 1 << 20);
  EXPECT_EQ(bytes("1KB"), 1000);
  EXPECT_EQ(bytes("1Mb"), -2);
  EXPECT_EQ(bytes("1Mib"), -2);
}

TEST(Budget, Percent) {
  EXPECT_EQ(fraction("50%"), 0.5);
  EXPECT_EQ(fraction("12.5 %"), 0.125);
  EXPECT_EQ(fraction("100%"), 1);
  EXPECT_EQ(fraction("0.1%"), 0.001);
}

TEST(Budget, RefusesNonsense) {
  for (const char* text :
       {"",
        " ",
        "0",
        "0MiB",
        "0%",
        "0.0",
        "-1",
        "-1GiB",
        "-50%",
        "+1",
        "nan",
        "NaN",
        "inf",
        "infinity",
        "-inf",
        "nan%",
        "1e9",
        "1e9GiB",
        "0x10",
        "8 GBs",
        "8 G",
        "8Gi",
        "8M",
        "GiB",
        "%",
        "B",
        "8 8GiB",
        "8GiB8",
        "8PB",
        "1.5",
        "1.5B",
        "1..5GB",
        ".5GB",
        "5.GB",
        "1,5GB",
        "1_000",
        "150%",
        "100.1%",
        "50%%",
        "50 percent",
        "0.0001kB",
        "4611686018427387905",
        "4194305TiB",
        "99999999999999999999",
        "999999999999999999999999999999999999999999TiB",
        "0.0000000000001GB",
        "one",
        "512MiB\n512MiB"}) {
    const std::string message = refusal(text);
    EXPECT_NE(message, "accepted") << text;
    EXPECT_THAT(message, testing::StartsWith("budget \"" + std::string(text) + "\" ")) << "it quotes what it refuses";
    EXPECT_THAT(message, testing::HasSubstr("accepted are")) << text;
  }
  EXPECT_NE(refusal(std::string_view("5\0", 2)), "accepted");
}

TEST(Budget, SaysWhy) {
  EXPECT_THAT(refusal(""), testing::HasSubstr("is empty"));
  EXPECT_THAT(refusal("-1"), testing::HasSubstr("is negative"));
  EXPECT_THAT(refusal("0"), testing::HasSubstr("is zero"));
  EXPECT_THAT(refusal("150%"), testing::HasSubstr("more than 100%"));
  EXPECT_THAT(refusal("8 GBs"), testing::HasSubstr("unknown unit"));
  EXPECT_THAT(refusal("4194305TiB"), testing::HasSubstr("2^62"));
}

TEST(Budget, BytesOfAFractionAreRoundedDown) {
  EXPECT_EQ(bytes_of(std::get<Limit>(parse_limit("50%")), 101), 50);
  EXPECT_EQ(bytes_of(std::get<Limit>(parse_limit("100%")), 101), 101);
  EXPECT_EQ(bytes_of(std::get<Limit>(parse_limit("50%")), 0), 0);
  EXPECT_EQ(bytes_of(std::get<Limit>(parse_limit("512MiB")), 101), 536870912);
  // Every whole percent of a hundred is exact, although 29% has no exact double.
  for (int percent = 1; percent <= 100; ++percent) {
    EXPECT_EQ(bytes_of(std::get<Limit>(parse_limit(std::to_string(percent) + "%")), 100), percent);
  }
  // A third: 33.333333333 % of 3 * 10^12 is just below 10^12.
  EXPECT_EQ(bytes_of(std::get<Limit>(parse_limit("33.333333333%")), 3000000000000), 999999999990);
}

TEST(Budget, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(536870912), "512.0 MiB");
  EXPECT_EQ(human_bytes(1048575), "1.0 MiB"); // not 1024.0 KiB
  EXPECT_EQ(human_bytes(-2048), "-2.0 KiB");
  EXPECT_EQ(human_bytes(int64_t{1} << 62), "4.0 EiB");
}

} // namespace
} // namespace recals::plan
