#include <array>

#include <ATen/AccumulateType.h>

#include "passes/meta/meta_kernels.h"
#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Statistics and parameters of a half-precision input are in single precision if the parameters are.
at::ScalarType statistics_type(const at::Tensor& input, const OptionalTensor& parameter) {
  return defined(parameter) ? parameter->scalar_type() : input.scalar_type();
}

/// Of what layer and batch norm save. CUDA's kernels keep it in the type that they add up in (ATen/native/cuda/Normalization.cu,
/// layer_norm_kernel.cu).
at::ScalarType saved_type(const at::Tensor& input, const OptionalTensor& parameter) {
  return MetaKernels::real(input.device()).is_cuda() ? at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true)
                                                     : statistics_type(input, parameter);
}

at::Tensor channel_vector(const at::Tensor& input, const OptionalTensor& parameter) {
  return make(input, {input.size(1)}, statistics_type(input, parameter));
}

// --- batch norm --------------------------------------------------------------------------------------------------------

ThreeTensors batch_norm_outputs(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& running_mean,
    bool training) {
  TORCH_CHECK(input.dim() >= 2, "batch_norm: expected an input with channels, got ", input.sizes());
  const auto type = saved_type(input, defined(weight) ? weight : running_mean);
  const int64_t saved = training ? input.size(1) : 0;
  return {make_suggested(input), make(input, {saved}, type), make(input, {saved}, type)};
}

ThreeTensors native_batch_norm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& /*bias*/,
    const OptionalTensor& running_mean,
    const OptionalTensor& /*running_var*/,
    bool training,
    double /*momentum*/,
    double /*eps*/) {
  return batch_norm_outputs(input, weight, running_mean, training);
}

ThreeTensors native_batch_norm_legit(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& /*bias*/,
    at::Tensor& running_mean,
    at::Tensor& /*running_var*/,
    bool training,
    double /*momentum*/,
    double /*eps*/) {
  return batch_norm_outputs(input, weight, running_mean, training);
}

ThreeTensors native_batch_norm_legit_no_stats(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& /*bias*/,
    bool training,
    double /*momentum*/,
    double /*eps*/) {
  return batch_norm_outputs(input, weight, {}, training);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_with_update(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& /*bias*/,
    at::Tensor& running_mean,
    at::Tensor& /*running_var*/,
    double /*momentum*/,
    double /*eps*/) {
  auto [output, mean, inverse_deviation] = batch_norm_outputs(input, weight, running_mean, true);
  return {output, mean, inverse_deviation, make(input, {0}, at::kByte)};
}

std::tuple<at::Tensor, at::Tensor> batch_norm_update_stats(
    const at::Tensor& input,
    const OptionalTensor& running_mean,
    const OptionalTensor& /*running_var*/,
    double /*momentum*/) {
  return {channel_vector(input, running_mean), channel_vector(input, running_mean)};
}

ThreeTensors batch_norm_grads(const at::Tensor& input, const OptionalTensor& weight, std::array<bool, 3> wanted) {
  ThreeTensors grads;
  if (wanted[0]) {
    std::get<0>(grads) = make_suggested(input);
  }
  if (wanted[1]) {
    std::get<1>(grads) = channel_vector(input, weight);
  }
  if (wanted[2]) {
    std::get<2>(grads) = channel_vector(input, weight);
  }
  return grads;
}

ThreeTensors native_batch_norm_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& /*running_mean*/,
    const OptionalTensor& /*running_var*/,
    const OptionalTensor& /*saved_mean*/,
    const OptionalTensor& /*saved_inverse_deviation*/,
    bool /*training*/,
    double /*eps*/,
    std::array<bool, 3> wanted) {
  return batch_norm_grads(input, weight, wanted);
}

ThreeTensors batch_norm_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptionalTensor& /*running_mean*/,
    const OptionalTensor& /*running_var*/,
    const OptionalTensor& /*saved_mean*/,
    const OptionalTensor& /*saved_inverse_deviation*/,
    bool /*update*/,
    double /*eps*/,
    std::array<bool, 3> wanted,
    const at::Tensor& /*reserve*/) {
  return batch_norm_grads(input, weight, wanted);
}

// --- layer norm --------------------------------------------------------------------------------------------------------

ThreeTensors native_layer_norm(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const OptionalTensor& weight,
    const OptionalTensor& /*bias*/,
    double /*eps*/) {
  const int64_t rows = input.dim() - static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK(
      rows >= 0 && input.sizes().slice(rows) == normalized_shape,
      "layer_norm: expected an input whose last sizes are ",
      normalized_shape,
      ", got ",
      input.sizes());
  at::DimVector sizes(input.sizes().begin(), input.sizes().begin() + rows);
  sizes.resize(input.dim(), 1);
  const auto type = saved_type(input, weight);
  return {make_contiguous(input), make(input, sizes, type), make(input, sizes, type)};
}

ThreeTensors native_layer_norm_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const at::Tensor& /*mean*/,
    const at::Tensor& /*inverse_deviation*/,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> wanted) {
  ThreeTensors grads;
  if (wanted[0]) {
    std::get<0>(grads) = make_contiguous(input);
  }
  if (wanted[1]) {
    std::get<1>(grads) = make(input, normalized_shape, statistics_type(input, weight));
  }
  if (wanted[2]) {
    std::get<2>(grads) = make(input, normalized_shape, statistics_type(input, defined(bias) ? bias : weight));
  }
  return grads;
}

// --- group norm --------------------------------------------------------------------------------------------------------

ThreeTensors native_group_norm(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& /*bias*/,
    int64_t batch,
    int64_t /*channels*/,
    int64_t /*positions*/,
    int64_t groups,
    double /*eps*/) {
  const auto type = statistics_type(input, weight);
  return {make_suggested(input), make(input, {batch, groups}, type), make(input, {batch, groups}, type)};
}

ThreeTensors native_group_norm_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& input,
    const at::Tensor& /*mean*/,
    const at::Tensor& /*inverse_deviation*/,
    const OptionalTensor& weight,
    int64_t /*batch*/,
    int64_t channels,
    int64_t /*positions*/,
    int64_t /*groups*/,
    std::array<bool, 3> wanted) {
  ThreeTensors grads;
  const auto type = statistics_type(input, weight);
  if (wanted[0]) {
    std::get<0>(grads) = make_suggested(input);
  }
  if (wanted[1]) {
    std::get<1>(grads) = make(input, {channels}, type);
  }
  if (wanted[2]) {
    std::get<2>(grads) = make(input, {channels}, type);
  }
  return grads;
}

// --- weight norm -------------------------------------------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> weight_norm(const at::Tensor& v, const at::Tensor& g, int64_t /*dim*/) {
  return {at::empty_like(v, at::MemoryFormat::Contiguous), make_contiguous(g)};
}

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& v,
    const at::Tensor& g,
    const at::Tensor& /*norms*/,
    int64_t /*dim*/) {
  return {make_contiguous(v), make_contiguous(g)};
}

} // namespace

void add_norm_kernels(MetaRegistrar& registrar) {
  registrar.add("native_batch_norm", &native_batch_norm);
  registrar.add("native_batch_norm_backward", &native_batch_norm_backward);
  registrar.add("_native_batch_norm_legit", &native_batch_norm_legit);
  registrar.add("_native_batch_norm_legit.no_stats", &native_batch_norm_legit_no_stats);
  registrar.add("_batch_norm_with_update", &batch_norm_with_update);
  registrar.add("batch_norm_update_stats", &batch_norm_update_stats);
  registrar.add("batch_norm_backward", &batch_norm_backward);
  registrar.add("native_layer_norm", &native_layer_norm);
  registrar.add("native_layer_norm_backward", &native_layer_norm_backward);
  registrar.add("native_group_norm", &native_group_norm);
  registrar.add("native_group_norm_backward", &native_group_norm_backward);
  registrar.add("_weight_norm_interface", &weight_norm);
  registrar.add("_weight_norm_interface_backward", &weight_norm_backward);
}

} // namespace recals
