#include <ATen/TensorIterator.h>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

using at::TensorIterator;
using at::TensorIteratorConfig;

// TensorIterator is what the CPU kernels make their outputs with, and it works on meta.

at::Tensor unary(const at::Tensor& self) {
  at::Tensor out;
  return TensorIterator::unary_op(out, self).output();
}

at::Tensor binary(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor out;
  return TensorIterator::borrowing_binary_op(out, self, other).output();
}

at::Tensor& unary_out(const at::Tensor& self, at::Tensor& out) {
  TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
  return out;
}

at::Tensor& binary_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  TensorIterator::borrowing_binary_op(out, self, other);
  return out;
}

at::Tensor& comparison_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  TensorIterator::comparison_op(out, self, other);
  return out;
}

at::Tensor& complex_out(const at::Tensor& real, const at::Tensor& imaginary, at::Tensor& out) {
  TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(out)
      .add_const_input(real)
      .add_const_input(imaginary)
      .build();
  return out;
}

// --- of one tensor -----------------------------------------------------------------------------------------------------

at::Tensor relu(const at::Tensor& self) {
  return at::clamp_min(self, 0);
}

at::Tensor hardtanh(const at::Tensor& self, const at::Scalar& /*low*/, const at::Scalar& /*high*/) {
  return unary(self);
}

at::Tensor unary_float(const at::Tensor& self) {
  at::Tensor out;
  return TensorIterator::unary_float_op(out, self).output();
}

at::Tensor logit(const at::Tensor& self, std::optional<double> /*eps*/) {
  return unary_float(self);
}

at::Tensor angle(const at::Tensor& self) {
  return self.is_complex() ? at::empty_like(self, self.options().dtype(c10::toRealValueType(self.scalar_type())))
                           : unary_float(self);
}

at::Tensor isnan(const at::Tensor& self) {
  return at::ne(self, self);
}

std::tuple<at::Tensor, at::Tensor> log_sigmoid(const at::Tensor& self) {
  return {make_contiguous(self), make_contiguous(self)};
}

at::Tensor& nan_to_num_out(
    const at::Tensor& self,
    std::optional<double> /*nan*/,
    std::optional<double> /*above*/,
    std::optional<double> /*below*/,
    at::Tensor& out) {
  return unary_out(self, out);
}

// --- of two ------------------------------------------------------------------------------------------------------------

at::Tensor binary_scalar(const at::Tensor& self, const at::Scalar& /*other*/) {
  return unary(self);
}

at::Tensor rsub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return at::sub(other, self, alpha);
}

/// A number counts for less than a tensor when the dtype of the result is chosen.
at::Tensor scalar_remainder(const at::Scalar& self, const at::Tensor& other) {
  auto number = at::scalar_tensor(self, at::TensorOptions().device(at::kCPU).dtype(self.type()));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return at::remainder(number, other);
}

at::Tensor prelu(const at::Tensor& self, const at::Tensor& /*weight*/) {
  return at::empty_like(self);
}

// --- of three ----------------------------------------------------------------------------------------------------------

/// The kernel wants both branches in one dtype and casts the other one.
at::Tensor cast(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.scalar_type() == type ? tensor : tensor.to(type);
}

at::Tensor& where_self_out(
    const at::Tensor& condition,
    const at::Tensor& self,
    const at::Tensor& other,
    at::Tensor& out) {
  const auto type = at::result_type(self, other);
  const auto chosen = cast(self, type);
  const auto alternative = cast(other, type);
  TensorIteratorConfig()
      .check_all_same_dtype(false)
      .allow_cpu_scalars(true)
      .add_output(out)
      .add_const_input(condition)
      .add_const_input(chosen)
      .add_const_input(alternative)
      .build();
  return out;
}

at::Tensor where_self(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  auto out = make(condition, {0}, at::result_type(self, other));
  return where_self_out(condition, self, other, out);
}

// --- gradients ---------------------------------------------------------------------------------------------------------

at::Tensor hardtanh_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Scalar& /*low*/,
    const at::Scalar& /*high*/) {
  return binary(grad, self);
}

at::Tensor log_sigmoid_backward(const at::Tensor& /*grad*/, const at::Tensor& self, const at::Tensor& /*buffer*/) {
  return at::empty_like(self);
}

at::Tensor glu_backward(const at::Tensor& /*grad*/, const at::Tensor& self, int64_t /*dim*/) {
  return make_contiguous(self);
}

std::tuple<at::Tensor, at::Tensor> prelu_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& weight) {
  at::Tensor grad_self;
  at::Tensor grad_weight;
  auto iterator = TensorIteratorConfig()
                      .add_output(grad_self)
                      .add_output(grad_weight)
                      .add_const_input(self)
                      .add_const_input(weight)
                      .add_const_input(grad)
                      .build();
  return {iterator.output(0), iterator.output(1)};
}

} // namespace

void add_pointwise_kernels(MetaRegistrar& registrar) {
  registrar.add("relu", &relu);
  registrar.add("hardswish", &unary);
  registrar.add("hardswish_backward", &binary);
  registrar.add("hardtanh", &hardtanh);
  registrar.add("hardtanh_backward", &hardtanh_backward);
  registrar.add("logit", &logit);
  registrar.add("angle", &angle);
  registrar.add("isnan", &isnan);
  registrar.add("log_sigmoid_forward", &log_sigmoid);
  registrar.add("log_sigmoid_backward", &log_sigmoid_backward);
  registrar.add("glu_backward", &glu_backward);
  registrar.add("_prelu_kernel", &prelu);
  registrar.add("_prelu_kernel_backward", &prelu_backward);
  registrar.add("__lshift__.Tensor", &binary);
  registrar.add("__lshift__.Scalar", &binary_scalar);
  registrar.add("__rshift__.Tensor", &binary);
  registrar.add("__rshift__.Scalar", &binary_scalar);
  registrar.add("floor_divide", &binary);
  registrar.add("floor_divide.out", &binary_out);
  registrar.add("rsub.Tensor", &rsub);
  registrar.add("remainder.Scalar_Tensor", &scalar_remainder);
  registrar.add("where.self", &where_self);
  registrar.add("where.self_out", &where_self_out);
  // What the functional ops of these names call.
  registrar.add("abs.out", &unary_out);
  registrar.add("conj_physical.out", &unary_out);
  registrar.add("complex.out", &complex_out);
  registrar.add("polar.out", &complex_out);
  registrar.add("logical_not.out", &unary_out);
  registrar.add("logical_and.out", &comparison_out);
  registrar.add("logical_or.out", &comparison_out);
  registrar.add("logical_xor.out", &comparison_out);
  registrar.add("nan_to_num.out", &nan_to_num_out);
}

} // namespace recals
