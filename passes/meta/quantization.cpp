#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// The numbers as they would be after quantisation, and where they were within its range.
TwoTensors rounded_and_mask(const at::Tensor& self) {
  return {at::empty_like(self), at::empty_like(self, self.options().dtype(at::kBool))};
}

TwoTensors per_tensor(const at::Tensor& self, double /*scale*/, int64_t /*zero*/, int64_t /*low*/, int64_t /*high*/) {
  return rounded_and_mask(self);
}

TwoTensors per_tensor_of_tensors(
    const at::Tensor& self,
    const at::Tensor& /*scale*/,
    const at::Tensor& /*zero*/,
    const at::Tensor& /*enabled*/,
    int64_t /*low*/,
    int64_t /*high*/) {
  return rounded_and_mask(self);
}

TwoTensors per_channel(
    const at::Tensor& self,
    const at::Tensor& /*scale*/,
    const at::Tensor& /*zero*/,
    int64_t /*axis*/,
    int64_t /*low*/,
    int64_t /*high*/) {
  return rounded_and_mask(self);
}

TwoTensors observed(
    const at::Tensor& self,
    const at::Tensor& /*observer_on*/,
    const at::Tensor& /*fake_quant_on*/,
    at::Tensor& /*running_min*/,
    at::Tensor& /*running_max*/,
    at::Tensor& /*scale*/,
    at::Tensor& /*zero*/,
    double /*averaging*/,
    int64_t /*low*/,
    int64_t /*high*/,
    int64_t /*axis*/,
    bool /*per_row*/,
    bool /*symmetric*/) {
  return rounded_and_mask(self);
}

at::Tensor learnable_per_tensor(
    const at::Tensor& self,
    const at::Tensor& /*scale*/,
    const at::Tensor& /*zero*/,
    int64_t /*low*/,
    int64_t /*high*/,
    double /*factor*/) {
  return at::empty_like(self);
}

ThreeTensors learnable_per_tensor_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& /*scale*/,
    const at::Tensor& /*zero*/,
    int64_t /*low*/,
    int64_t /*high*/,
    double /*factor*/) {
  return {at::empty_like(self), make(self, {1}), make(self, {1})};
}

at::Tensor learnable_per_channel(
    const at::Tensor& self,
    const at::Tensor& /*scale*/,
    const at::Tensor& /*zero*/,
    int64_t /*axis*/,
    int64_t /*low*/,
    int64_t /*high*/,
    double /*factor*/) {
  return at::empty_like(self);
}

ThreeTensors learnable_per_channel_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& scale,
    const at::Tensor& zero,
    int64_t /*axis*/,
    int64_t /*low*/,
    int64_t /*high*/,
    double /*factor*/) {
  return {at::empty_like(self), make_contiguous(scale), make_contiguous(zero)};
}

} // namespace

void add_quantization_kernels(MetaRegistrar& registrar) {
  registrar.add("fake_quantize_per_tensor_affine_cachemask", &per_tensor);
  registrar.add("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", &per_tensor_of_tensors);
  registrar.add("fake_quantize_per_channel_affine_cachemask", &per_channel);
  registrar.add("_fused_moving_avg_obs_fq_helper", &observed);
  registrar.add("_fake_quantize_learnable_per_tensor_affine", &learnable_per_tensor);
  registrar.add("_fake_quantize_learnable_per_tensor_affine_backward", &learnable_per_tensor_backward);
  registrar.add("_fake_quantize_learnable_per_channel_affine", &learnable_per_channel);
  registrar.add("_fake_quantize_learnable_per_channel_affine_backward", &learnable_per_channel_backward);
}

} // namespace recals
