#include <algorithm>

#include <ATen/TensorIterator.h>
#include <ATen/core/Reduction.h>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

at::Tensor reduced(const at::Tensor& self, at::IntArrayRef sizes, int64_t reduction) {
  return reduction == at::Reduction::None ? make(self, sizes) : make(self, {});
}

at::Tensor& into(at::Tensor& out, const at::Tensor& self, const at::Tensor& target) {
  at::TensorIterator::borrowing_binary_op(out, self, target);
  return out;
}

// --- elementwise -------------------------------------------------------------------------------------------------------

at::Tensor binary_cross_entropy(
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    const OptionalTensor& /*weight*/,
    int64_t reduction) {
  auto loss = at::empty_like(self);
  // The kernel reduces into what it has computed: the number stays in a storage as large as the input.
  return reduction == at::Reduction::None ? loss : resized(loss, {});
}

at::Tensor binary_cross_entropy_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    const OptionalTensor& /*weight*/,
    int64_t /*reduction*/) {
  return at::empty_like(self);
}

at::Tensor mse_loss_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    int64_t /*reduction*/) {
  return make_contiguous(self);
}

at::Tensor& smooth_l1_loss_backward_out(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t /*reduction*/,
    double /*beta*/,
    at::Tensor& out) {
  return into(out, self, target);
}

at::Tensor huber_loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double /*delta*/) {
  if (reduction != at::Reduction::None) {
    return make(self, {});
  }
  at::Tensor out;
  return at::TensorIterator::borrowing_binary_op(out, self, target).output();
}

at::Tensor& huber_loss_backward_out(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t /*reduction*/,
    double /*delta*/,
    at::Tensor& out) {
  return into(out, self, target);
}

// --- of classes --------------------------------------------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> nll_loss2d(
    const at::Tensor& self,
    const at::Tensor& target,
    const OptionalTensor& /*weight*/,
    int64_t reduction,
    int64_t /*ignore_index*/) {
  TORCH_CHECK(
      self.dim() == 4 && target.dim() == 3, "nll_loss2d: target ", target.sizes(), " does not fit ", self.sizes());
  return {reduced(self, {self.size(0), self.size(2), self.size(3)}, reduction), make(self, {})};
}

at::Tensor nll_loss2d_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    const OptionalTensor& /*weight*/,
    int64_t /*reduction*/,
    int64_t /*ignore_index*/,
    const at::Tensor& /*total_weight*/) {
  return make_contiguous(self);
}

at::Tensor multi_margin_loss(
    const at::Tensor& self,
    const at::Tensor& target,
    const at::Scalar& /*p*/,
    const at::Scalar& /*margin*/,
    const OptionalTensor& /*weight*/,
    int64_t reduction) {
  return reduced(self, target.sizes(), reduction);
}

at::Tensor multi_margin_loss_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    const at::Scalar& /*p*/,
    const at::Scalar& /*margin*/,
    const OptionalTensor& /*weight*/,
    int64_t /*reduction*/) {
  return make_contiguous(self);
}

std::tuple<at::Tensor, at::Tensor> multilabel_margin_loss(
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t reduction) {
  const auto rows = self.dim() == 2 ? at::DimVector{self.size(0)} : at::DimVector{};
  return {reduced(self, rows, reduction), make(self, target.sizes())};
}

at::Tensor multilabel_margin_loss_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    int64_t /*reduction*/,
    const at::Tensor& /*is_target*/) {
  return make_contiguous(self);
}

// --- of sequences ------------------------------------------------------------------------------------------------------

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

/// The loss of each sample, and a logarithm for each moment and each label with a blank on both sides.
TwoTensors ctc(const at::Tensor& log_probs, int64_t longest_target) {
  TORCH_CHECK(log_probs.dim() == 3, "ctc_loss: log_probs of time, sample and class expected, got ", log_probs.sizes());
  const int64_t samples = log_probs.size(1);
  return {make(log_probs, {samples}), make(log_probs, {samples, log_probs.size(0), 2 * longest_target + 1})};
}

TwoTensors ctc_loss(
    const at::Tensor& log_probs,
    const at::Tensor& /*targets*/,
    at::IntArrayRef /*input_lengths*/,
    at::IntArrayRef target_lengths,
    int64_t /*blank*/,
    bool /*zero_infinity*/) {
  return ctc(log_probs, target_lengths.empty() ? 0 : *std::max_element(target_lengths.begin(), target_lengths.end()));
}

/// Lengths that are data are at most what there are targets.
TwoTensors ctc_loss_of_tensors(
    const at::Tensor& log_probs,
    const at::Tensor& targets,
    const at::Tensor& /*input_lengths*/,
    const at::Tensor& /*target_lengths*/,
    int64_t /*blank*/,
    bool /*zero_infinity*/) {
  return ctc(log_probs, targets.dim() == 0 ? 1 : targets.size(-1));
}

at::Tensor ctc_loss_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& log_probs,
    const at::Tensor& /*targets*/,
    at::IntArrayRef /*input_lengths*/,
    at::IntArrayRef /*target_lengths*/,
    const at::Tensor& /*neg_log_likelihood*/,
    const at::Tensor& /*log_alpha*/,
    int64_t /*blank*/,
    bool /*zero_infinity*/) {
  return make_contiguous(log_probs);
}

at::Tensor ctc_loss_backward_of_tensors(
    const at::Tensor& /*grad*/,
    const at::Tensor& log_probs,
    const at::Tensor& /*targets*/,
    const at::Tensor& /*input_lengths*/,
    const at::Tensor& /*target_lengths*/,
    const at::Tensor& /*neg_log_likelihood*/,
    const at::Tensor& /*log_alpha*/,
    int64_t /*blank*/,
    bool /*zero_infinity*/) {
  return make_contiguous(log_probs);
}

} // namespace

void add_loss_kernels(MetaRegistrar& registrar) {
  registrar.add("binary_cross_entropy", &binary_cross_entropy);
  registrar.add("binary_cross_entropy_backward", &binary_cross_entropy_backward);
  registrar.add("mse_loss_backward", &mse_loss_backward);
  registrar.add("smooth_l1_loss_backward.grad_input", &smooth_l1_loss_backward_out);
  registrar.add("huber_loss", &huber_loss);
  registrar.add("huber_loss_backward.out", &huber_loss_backward_out);
  registrar.add("nll_loss2d_forward", &nll_loss2d);
  registrar.add("nll_loss2d_backward", &nll_loss2d_backward);
  registrar.add("multi_margin_loss", &multi_margin_loss);
  registrar.add("multi_margin_loss_backward", &multi_margin_loss_backward);
  registrar.add("multilabel_margin_loss_forward", &multilabel_margin_loss);
  registrar.add("multilabel_margin_loss_backward", &multilabel_margin_loss_backward);
  registrar.add("_ctc_loss", &ctc_loss);
  registrar.add("_ctc_loss.Tensor", &ctc_loss_of_tensors);
  registrar.add("_ctc_loss_backward", &ctc_loss_backward);
  registrar.add("_ctc_loss_backward.Tensor", &ctc_loss_backward_of_tensors);
}

} // namespace recals
