#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

at::Tensor fft_c2c(const at::Tensor& self, at::IntArrayRef /*dim*/, int64_t /*normalization*/, bool /*forward*/) {
  return make_contiguous(self);
}

at::Tensor fft_r2c(const at::Tensor& self, at::IntArrayRef dim, int64_t /*normalization*/, bool onesided) {
  at::DimVector sizes(self.sizes());
  if (onesided) {
    auto& last = sizes[c10::maybe_wrap_dim(dim.back(), self.dim())];
    last = last / 2 + 1;
  }
  return make(self, sizes, c10::toComplexType(self.scalar_type()));
}

at::Tensor fft_c2r(const at::Tensor& self, at::IntArrayRef dim, int64_t /*normalization*/, int64_t last_dim_size) {
  at::DimVector sizes(self.sizes());
  sizes[c10::maybe_wrap_dim(dim.back(), self.dim())] = last_dim_size;
  return make(self, sizes, c10::toRealValueType(self.scalar_type()));
}

} // namespace

void add_fft_kernels(MetaRegistrar& registrar) {
  registrar.add("_fft_c2c", &fft_c2c);
  registrar.add("_fft_r2c", &fft_r2c);
  registrar.add("_fft_c2r", &fft_c2r);
}

} // namespace recals
