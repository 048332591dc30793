#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double /*p*/, std::optional<bool> train) {
  if (train && !*train) {
    return {input, at::empty_like(input, input.options().dtype(at::kBool))};
  }
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& /*mask*/, double /*scale*/) {
  return at::empty_like(grad);
}

at::Tensor rrelu_with_noise(
    const at::Tensor& self,
    at::Tensor& /*noise*/,
    const at::Scalar& /*lower*/,
    const at::Scalar& /*upper*/,
    bool /*training*/,
    std::optional<at::Generator> /*generator*/) {
  return make_contiguous(self);
}

} // namespace

void add_dropout_kernels(MetaRegistrar& registrar) {
  registrar.add("native_dropout", &native_dropout);
  registrar.add("native_dropout_backward", &native_dropout_backward);
  registrar.add("rrelu_with_noise", &rrelu_with_noise);
}

} // namespace recals
