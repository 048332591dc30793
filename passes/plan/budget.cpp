#include "passes/plan/budget.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <optional>

namespace recals::plan {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kMostBytes = int64_t{1} << 62;
// 24 digits (80 bits) times a TiB (41 bits) fit Wide.
constexpr int kMostDigits = 24;
constexpr int kMostDecimals = 9;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// digits / 10^decimals
struct Decimal {
  Wide digits = 0;
  int decimals = 0;
};

/// Takes "12" or "12.5" from the front of `text`.
std::optional<Decimal> take_decimal(std::string_view& text) {
  Decimal value;
  int count = 0;
  size_t i = 0;
  bool point = false;
  for (; i < text.size(); ++i) {
    if (text[i] == '.' && !point) {
      point = true;
      continue;
    }
    if (!is_digit(text[i])) {
      break;
    }
    if (value.digits != 0 || text[i] != '0') {
      ++count;
    }
    value.digits = value.digits * 10 + (text[i] - '0');
    value.decimals += point ? 1 : 0;
    if (count > kMostDigits || value.decimals > kMostDecimals) {
      return std::nullopt;
    }
  }
  const bool digit_at_both_ends = i > 0 && is_digit(text[0]) && is_digit(text[i - 1]);
  if (!digit_at_both_ends) {
    return std::nullopt;
  }
  text.remove_prefix(i);
  return value;
}

/// Bytes of a unit; nothing if it is none. The prefix may have any case, the B must be one: "Mb" are bits.
std::optional<int64_t> unit_bytes(std::string_view unit) {
  if (unit.empty() || unit.back() != 'B') {
    return std::nullopt;
  }
  unit.remove_suffix(1);
  if (unit.empty()) {
    return 1;
  }
  const bool binary = unit.size() == 2 && std::tolower(static_cast<unsigned char>(unit[1])) == 'i';
  if (unit.size() != 1 && !binary) {
    return std::nullopt;
  }
  const size_t power =
      std::string_view("kmgt").find(static_cast<char>(std::tolower(static_cast<unsigned char>(unit[0]))));
  if (power == std::string_view::npos) {
    return std::nullopt;
  }
  int64_t bytes = 1;
  for (size_t i = 0; i <= power; ++i) {
    bytes *= binary ? 1024 : 1000;
  }
  return bytes;
}

BadBudget refuse(std::string_view text, const std::string& why) {
  return {
      "budget \"" + std::string(text) + "\" " + why +
      "; accepted are bytes (536870912), a size (512MiB, 1.5 GB: KiB MiB GiB TiB or kB MB GB TB), a share of the plain "
      "step's peak (50%), min (the smallest that works) and auto (what the device has free)"};
}

} // namespace

std::variant<Limit, BadBudget> parse_limit(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (rest.empty()) {
    return refuse(text, "is empty");
  }
  if (rest == "min" || rest == "auto") {
    Limit limit;
    limit.kind = rest == "min" ? Limit::Kind::Min : Limit::Kind::Auto;
    return limit;
  }
  if (rest.front() == '-') {
    return refuse(text, "is negative");
  }
  const std::optional<Decimal> number = take_decimal(rest);
  if (!number) {
    return refuse(text, "does not start with a number that can be read");
  }
  rest = trimmed(rest);

  Wide scale = 1;
  for (int i = 0; i < number->decimals; ++i) {
    scale *= 10;
  }
  if (number->digits == 0) {
    return refuse(text, "is zero");
  }
  if (rest == "%") {
    if (number->digits > 100 * scale) {
      return refuse(text, "is more than 100%");
    }
    Limit limit;
    limit.kind = Limit::Kind::Share;
    limit.fraction = static_cast<double>(number->digits) / (100.0 * static_cast<double>(scale));
    return limit;
  }
  int64_t unit = 1;
  if (!rest.empty()) {
    const std::optional<int64_t> bytes = unit_bytes(rest);
    if (!bytes) {
      return refuse(text, "has an unknown unit");
    }
    unit = *bytes;
  }
  if (unit == 1 && number->decimals > 0) {
    return refuse(text, "is a fraction of bytes");
  }
  const Wide bytes = number->digits * unit / scale;
  if (bytes > kMostBytes) {
    return refuse(text, "is more than 2^62 bytes (4 EiB)");
  }
  if (bytes == 0) {
    return refuse(text, "is less than a byte");
  }
  Limit limit;
  limit.bytes = static_cast<int64_t>(bytes);
  return limit;
}

int64_t bytes_of(const Limit& limit, int64_t plain_peak) {
  if (limit.kind != Limit::Kind::Share) {
    return limit.bytes;
  }
  int64_t bytes = static_cast<int64_t>(std::floor(static_cast<long double>(limit.fraction) * plain_peak));
  // 29% has no exact double: one byte more may still be within the fraction that was written.
  if (plain_peak > 0 && bytes < plain_peak &&
      static_cast<double>(bytes + 1) / static_cast<double>(plain_peak) <= limit.fraction) {
    ++bytes;
  }
  return bytes;
}

std::string percent_for(int64_t bytes, int64_t plain_peak) {
  constexpr int64_t kAll = 1000; // tenths of a per cent
  auto tenths =
      static_cast<int64_t>(static_cast<Wide>(std::max<int64_t>(bytes, 0)) * kAll / std::max<int64_t>(plain_peak, 1));
  for (tenths = std::max<int64_t>(tenths, 1); tenths <= kAll; ++tenths) {
    const std::string text =
        std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + "%";
    if (bytes_of(std::get<Limit>(parse_limit(text)), plain_peak) >= bytes) {
      return text;
    }
  }
  return "";
}

std::string human_bytes(int64_t bytes) {
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const double size = std::abs(static_cast<double>(bytes));
  if (size < 1024) {
    return std::to_string(bytes) + " B";
  }
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  // 1023.96 would print as 1024.0
  while (std::abs(value) >= 1023.95 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %s", value, units[unit]);
  return text;
}

} // namespace recals::plan
