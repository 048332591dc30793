#include "passes/sizes/loss.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "passes/graph/specialise.h"
#include "passes/meta/meta_allocator.h"
#include "passes/sizes/older_loss.h"

namespace recals {

// --- the caller's tensors ----------------------------------------------------------------------------------------------

c10::Device LossStandIns::of(c10::Device device) const {
  return devices_.stand_in(target_ && !device.is_meta() ? *target_ : device);
}

at::Tensor LossStandIns::of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) {
    return tensor;
  }
  const auto* key = tensor.unsafeGetTensorImpl();
  auto found = known_.find(key);
  if (found == known_.end() || found->second.original.expired()) {
    const MetaAllocationPause belongs_to_the_caller;
    const at::NoGradGuard no_grad;
    auto stand_in = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(of(tensor.device())));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    if (tensor.requires_grad()) {
      stand_in.set_requires_grad(true);
      stand_in.mutable_grad() = at::zeros_like(stand_in);
    }
    known_.erase(key);
    c10::weak_intrusive_ptr<c10::TensorImpl> original(tensor.getIntrusivePtr());
    found = known_.emplace(key, Known{std::move(original), std::move(stand_in)}).first;
  }
  return found->second.stand_in;
}

// --- the stand-in ------------------------------------------------------------------------------------------------------

namespace {

thread_local int units = 5; ///< live at a moment of the loss's backward

} // namespace

OlderStandIn::OlderStandIn() : outer_(units) {
  units = 4;
}

OlderStandIn::~OlderStandIn() {
  units = outer_;
}

namespace {

bool takes_loss(const at::Tensor& output) {
  return output.defined() && output.requires_grad() && (output.dim() > 0 || output.is_complex()) && output.numel() > 0;
}

/// Losses of 16-bit floats are computed in float: by autocast, or because the caller writes `.float()`.
at::Tensor as_computed(const at::Tensor& output) {
  const auto real = output.is_complex() ? at::view_as_real(output) : output;
  return at::isReducedFloatingType(real.scalar_type()) ? real.to(at::kFloat) : real;
}

/// Note [The stand-in for a loss]
/// The envelope of the usual losses, in units of what they are computed of: an output, or its copy in float.
///   - Held from the loss to the end: one (mse_loss returns its mean in such a storage; cross_entropy saves
///     log-probabilities), and until its backward begins, the copy (mse_loss saves it, and so does logsumexp).
///   - Live at a moment of the loss's backward, beside the output: five (squares written out; of a copy, a cross-entropy
///     with a penalty on logsumexp, which has some numbers for each row besides; l1_loss: four). The gradient is one.
at::Tensor envelope_of(const at::Tensor& output, const at::Tensor& target) {
  const auto computed = as_computed(output);
  const bool copied = at::isReducedFloatingType(output.scalar_type());
  const int64_t rows = copied ? computed.numel() / computed.size(-1) : 0;
  computed.register_hook([rows, more = units - 2](const at::Tensor& gradient) { // beside what is held, and the gradient
    std::vector<at::Tensor> live;
    for (int i = 0; i < more; ++i) {
      live.push_back(at::empty_like(gradient));
    }
    const auto of_rows = at::empty({std::min(4 * rows, gradient.numel())}, gradient.options());
  });
  return at::mse_loss(computed, target);
}

} // namespace

LossOf::LossOf(const Loss& loss, const std::vector<at::Tensor>& outputs, const DeviceTable& devices)
    : loss_(loss), outputs_(outputs), devices_(devices) {
  const MetaAllocationPause belongs_to_the_caller;
  const at::NoGradGuard no_grad;
  for (const auto& output : outputs) {
    targets_.push_back(!loss.function && takes_loss(output) ? at::empty_like(as_computed(output)) : at::Tensor());
  }
}

at::Tensor LossOf::operator()() {
  if (loss_.function) {
    return given();
  }
  auto loss = envelope();
  TORCH_CHECK(
      loss.defined(),
      "recals: no output of the method requires grad, so there is no training step. Are all parameters frozen?");
  // The single numbers that a loss makes on its way (counts, means, weights).
  numbers_ = at::empty({16}, loss.options().dtype(at::kFloat));
  return loss;
}

at::Tensor LossOf::given() const {
  const auto loss =
      loss_.function(with_tensors(loss_.result, outputs_), std::make_shared<LossStandIns>(devices_, loss_.target));
  TORCH_CHECK(
      loss.defined() && loss.is_meta() && loss.numel() == 1 && loss.requires_grad(),
      "recals: loss= must return one number as a tensor that depends on what the module returns, but it returned ",
      !loss.defined()         ? "nothing"
          : loss.numel() != 1 ? c10::str("a tensor of shape ", loss.sizes())
                              : "a tensor without a gradient");
  return loss;
}

/// The sum of the outputs that are losses, and of a stand-in for each other one.
at::Tensor LossOf::envelope() const {
  at::Tensor total;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const auto& output = outputs_[i];
    if (!output.defined() || !output.requires_grad()) {
      continue;
    }
    at::Tensor loss = output;
    if (takes_loss(output)) {
      loss = envelope_of(output, targets_[i]);
    } else if (output.numel() == 0) {
      loss = output.sum();
    }
    // Outputs may be on several devices; their losses meet on that of the first.
    total = total.defined() ? total + loss.to(total.device()) : loss;
  }
  return total;
}

} // namespace recals
