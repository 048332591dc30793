#include "passes/sizes/dry_run.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "passes/meta/meta_kernels.h"
#include "passes/sizes/recorder.h"
#include "runtime/executor.h"

namespace recals {

namespace {

/// What else a loss may hold until the end: mse_loss, for one, returns its mean in a storage as large as its input.
std::vector<at::Tensor> reserve_for(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> reserve;
  for (const auto& output : outputs) {
    if (output.defined() && output.requires_grad() && output.dim() > 0) {
      reserve.push_back(at::empty(output.sizes(), output.options()));
    }
  }
  return reserve;
}

/// Targets of the stand-in loss: they belong to the caller, so they are made before anything is counted.
std::vector<at::Tensor> targets_for(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> targets;
  for (const auto& output : outputs) {
    const int64_t classes = output.dim() > 0 ? std::max<int64_t>(output.size(-1), 1) : 1;
    targets.push_back(at::empty({output.numel() / classes}, at::TensorOptions().dtype(at::kLong).device(c10::kMeta)));
  }
  return targets;
}

/// What the caller does with the outputs: their sum if they are losses, a cross-entropy of each otherwise.
at::Tensor stand_in_loss(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& targets) {
  at::Tensor total;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = outputs[i];
    if (!output.defined() || !output.requires_grad()) {
      continue;
    }
    at::Tensor loss = output;
    if (output.numel() == 0) {
      loss = output.sum();
    } else if (output.dim() > 0) {
      auto real = output.is_complex() ? at::view_as_real(output) : output;
      const int64_t classes = real.size(-1);
      auto target = targets[i].numel() * classes == real.numel() ? targets[i] : at::empty({real.numel() / classes}, targets[i].options());
      loss = at::cross_entropy_loss(real.reshape({-1, classes}), target);
    }
    total = total.defined() ? total + loss : loss;
  }
  return total;
}

} // namespace

DryRun dry_run(
    const std::shared_ptr<const Program>& program,
    const c10::IValue& self,
    const std::vector<at::Tensor>& inputs,
    const std::string& device) {
  register_missing_meta_kernels();
  at::AutoGradMode grad_mode(true);
  Recorder recorder(*program, device);
  {
    MetaAllocationScope scope(recorder);
    auto outputs = run(program, self, inputs, &recorder);
    recorder.forward_ends(outputs);
    const auto reserve = reserve_for(outputs);
    auto loss = stand_in_loss(outputs, targets_for(outputs));
    TORCH_CHECK(
        loss.defined(),
        "recals: no output of the method requires grad, so there is no training step. Are all parameters frozen?");
    torch::autograd::backward({loss}, {}, /*retain_graph=*/false);
  }
  return recorder.finish();
}

} // namespace recals
