#include "runtime/constants.h"

#include <ATen/ATen.h>

namespace recals {

at::Tensor constant_on_meta(const at::Tensor& constant, c10::Device stand_in) {
  auto copy = constant.to(stand_in);
  if (constant.unsafeGetTensorImpl()->is_wrapped_number() && !copy.is_same(constant)) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

} // namespace recals
