#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

/// Reflection and replication in two dimensions keep channels-last.
at::Tensor reflection_pad2d(const at::Tensor& self, at::IntArrayRef padding) {
  TORCH_CHECK(
      padding.size() == 4 && (self.dim() == 3 || self.dim() == 4),
      "reflection_pad2d: padding ",
      padding,
      " does not fit an input of size ",
      self.sizes());
  at::DimVector sizes(self.sizes());
  sizes[self.dim() - 1] += padding[0] + padding[1];
  sizes[self.dim() - 2] += padding[2] + padding[3];
  return make(self, sizes, self.suggest_memory_format());
}

at::Tensor pad_backward(const at::Tensor& /*grad*/, const at::Tensor& self, at::IntArrayRef /*padding*/) {
  return make_suggested(self);
}

} // namespace

void add_padding_kernels(MetaRegistrar& registrar) {
  registrar.add("reflection_pad2d", &reflection_pad2d);
  registrar.add("reflection_pad2d_backward", &pad_backward);
  registrar.add("replication_pad2d_backward", &pad_backward);
  registrar.add("replication_pad3d_backward", &pad_backward);
}

} // namespace recals
