#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor embedding_dense_backward(
    const at::Tensor& grad,
    const at::Tensor& /*indices*/,
    int64_t rows,
    int64_t /*padding_idx*/,
    bool /*scale_grad_by_freq*/) {
  return make(grad, {rows, grad.size(-1)});
}

/// The rows that are too long are made shorter where they are.
at::Tensor& embedding_renorm_(
    at::Tensor& self,
    const at::Tensor& /*indices*/,
    double /*max_norm*/,
    double /*norm_type*/) {
  return self;
}

// --- bags --------------------------------------------------------------------------------------------------------------

enum BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

/// The output, the bag of each index, the sizes of the bags, and which index was the largest. A sum that needs no
/// `padding_idx` is computed without knowing the bags.
FourTensors embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool /*scale_grad_by_freq*/,
    int64_t mode,
    bool /*sparse*/,
    const OptionalTensor& sample_weights,
    bool include_last_offset,
    int64_t padding_idx) {
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  const bool half_or_single =
      weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kHalf || weight.scalar_type() == at::kBFloat16;
  const bool direct = mode == kSum && half_or_single && weight.stride(1) == 1 && padding_idx < 0 &&
      (!defined(sample_weights) || sample_weights->stride(0) == 1);
  // The kernel computes both of these with one element more and then cuts it off.
  auto bag_of = make(offsets, {direct ? 0 : indices.size(0) + 1});
  auto bag_sizes = make(offsets, {offsets.size(0)});
  return {
      make(weight, {bags, weight.size(1)}),
      resized(bag_of, {direct ? 0 : indices.size(0)}),
      resized(bag_sizes, {bags}),
      mode == kMax ? make(offsets, {bags, weight.size(1)}) : make(offsets, {bags})};
}

at::Tensor embedding_bag_dense_backward(
    const at::Tensor& grad,
    const at::Tensor& /*indices*/,
    const at::Tensor& /*offset2bag*/,
    const at::Tensor& /*bag_size*/,
    const at::Tensor& /*maximum_indices*/,
    int64_t rows,
    bool /*scale_grad_by_freq*/,
    int64_t /*mode*/,
    const OptionalTensor& /*sample_weights*/,
    int64_t /*padding_idx*/) {
  return make(grad, {rows, grad.size(1)});
}

at::Tensor embedding_bag_backward(
    const at::Tensor& grad,
    const at::Tensor& /*indices*/,
    const at::Tensor& /*offsets*/,
    const at::Tensor& /*offset2bag*/,
    const at::Tensor& /*bag_size*/,
    const at::Tensor& /*maximum_indices*/,
    int64_t rows,
    bool /*scale_grad_by_freq*/,
    int64_t /*mode*/,
    bool sparse,
    const OptionalTensor& /*sample_weights*/,
    int64_t /*padding_idx*/) {
  TORCH_CHECK(!sparse, "embedding_bag: sparse gradients are not supported on meta tensors");
  return make(grad, {rows, grad.size(1)});
}

at::Tensor embedding_bag_sample_weights_backward(
    const at::Tensor& grad,
    const at::Tensor& /*weight*/,
    const at::Tensor& indices,
    const at::Tensor& /*offsets*/,
    const at::Tensor& /*offset2bag*/,
    int64_t /*mode*/,
    int64_t /*padding_idx*/) {
  return make(grad, {indices.size(0)});
}

} // namespace

void add_embedding_kernels(MetaRegistrar& registrar) {
  registrar.add("embedding_dense_backward", &embedding_dense_backward);
  registrar.add("embedding_renorm_", &embedding_renorm_);
  registrar.add("_embedding_bag", &embedding_bag);
  registrar.add("_embedding_bag_forward_only", &embedding_bag);
  registrar.add("_embedding_bag_backward", &embedding_bag_backward);
  registrar.add("_embedding_bag_dense_backward", &embedding_bag_dense_backward);
  registrar.add("_embedding_bag_per_sample_weights_backward", &embedding_bag_sample_weights_backward);
}

} // namespace recals
