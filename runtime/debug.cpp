#include "runtime/debug.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include <ATen/ATen.h>

namespace recals {

namespace {

std::atomic<bool> on{false};

} // namespace

bool debugging() {
  return on.load(std::memory_order_relaxed);
}

void set_debugging(bool value) {
  on.store(value, std::memory_order_relaxed);
}

uint64_t fingerprint(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto here = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  const auto* bytes = static_cast<const char*>(here.const_data_ptr());
  const size_t size = here.nbytes();
  uint64_t state = 0x9E3779B97F4A7C15ULL ^ size;
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof(word), size - i));
    state = std::rotl((state ^ word) * 0xFF51AFD7ED558CCDULL, 29); // a bijection of the state for each word
  }
  return std::max<uint64_t>(state, 1);
}

} // namespace recals
