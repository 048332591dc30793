#include "runtime/checksum.h"

#include <bit>
#include <cstring>

namespace recals {

namespace {

constexpr size_t kSmall = 64 * 1024;
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kLanes = 4; // that do not wait for each other

/// Odd numbers without a pattern: products with them lose no bit of a word.
constexpr uint64_t kOne = 0x9e3779b97f4a7c15;
constexpr uint64_t kOther = 0xd1b54a32d192ed03;

uint64_t mixed(uint64_t lane, uint64_t word) {
  return std::rotl((lane ^ word) * kOne, 29) * kOther;
}

} // namespace

Checksum checksum_of(const void* bytes, size_t size) {
  const auto* next = static_cast<const char*>(bytes);
  uint64_t lanes[kLanes] = {kOne, kOther, ~kOne, ~kOther};
  auto take = [&](const char* from, size_t count, size_t lane) {
    uint64_t word = 0;
    std::memcpy(&word, from, count);
    lanes[lane] = mixed(lanes[lane], word);
  };
  size_t left = size;
  for (; left >= kLanes * kWord; left -= kLanes * kWord, next += kLanes * kWord) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      take(next + lane * kWord, kWord, lane);
    }
  }
  for (size_t lane = 0; left > 0; ++lane) {
    const size_t count = left < kWord ? left : kWord;
    take(next, count, lane);
    next += count;
    left -= count;
  }
  Checksum sum{mixed(lanes[0], size), mixed(lanes[1], size)};
  sum.one = mixed(sum.one, lanes[2]);
  sum.other = mixed(sum.other, lanes[3]);
  return {mixed(sum.one, std::rotl(sum.other, 32)), mixed(sum.other, sum.one)};
}

std::optional<Checksum> checksum_if_small(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || !tensor.has_storage() || tensor.storage().nbytes() > kSmall) {
    return std::nullopt;
  }
  return checksum_of(tensor.storage().data(), tensor.storage().nbytes());
}

} // namespace recals
