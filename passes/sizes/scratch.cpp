#include "passes/sizes/kernel_rules.h"

namespace recals {

int64_t scratch_bytes(const KernelCall&) {
  return 0;
}

} // namespace recals
