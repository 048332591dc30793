#include "runtime/devices_here.h"

#include <algorithm>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace recals {

c10::DeviceIndex devices_here(c10::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) {
    return 0;
  }
  const auto count = c10::impl::getDeviceGuardImpl(type)->deviceCount();
  // FakeTensorMode, and so torch.compile, puts a guard there that counts one device where there is none.
  return type == c10::kCUDA ? std::min(count, static_cast<c10::DeviceIndex>(at::detail::getCUDAHooks().deviceCount()))
                            : count;
}

} // namespace recals
