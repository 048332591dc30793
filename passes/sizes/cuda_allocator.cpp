#include "passes/sizes/cuda_allocator.h"

#include <cstdlib>
#include <regex>
#include <string>

#include <c10/util/Exception.h>

namespace recals {

namespace {

constexpr int64_t KiB = 1024;
constexpr int64_t MiB = 1024 * KiB;
constexpr int64_t kUnit = 512;
constexpr int64_t kOwnSegment = 10 * MiB; ///< from here on
constexpr int64_t kSegmentUnit = 2 * MiB;
constexpr int64_t kWorthSplitting = 1 * MiB; ///< more than this

int64_t round_up(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

} // namespace

int64_t cuda_block_bytes(int64_t bytes) {
  const int64_t block = round_up(bytes, kUnit);
  if (block < kOwnSegment) {
    return block;
  }
  const int64_t segment = round_up(block, kSegmentUnit);
  return segment - block > kWorthSplitting ? block : segment;
}

int64_t default_workspace_margin() {
  const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  if (text == nullptr) {
    return 32 * MiB;
  }
  static const std::regex all("(:[0-9]{1,9}:[0-9]{1,9})+");
  static const std::regex one(":([0-9]+):([0-9]+)");
  const std::string config(text);
  TORCH_CHECK(
      std::regex_match(config, all),
      "recals: CUBLAS_WORKSPACE_CONFIG is '",
      config,
      "', not of the form ':SIZE:COUNT' (SIZE in KiB). Correct it, or say how much to count with workspace_margin.");
  int64_t bytes = 0;
  for (std::sregex_iterator match(config.begin(), config.end(), one), end; match != end; ++match) {
    bytes += std::stoll((*match)[1]) * std::stoll((*match)[2]) * KiB;
  }
  return bytes;
}

} // namespace recals
