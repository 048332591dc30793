#include "passes/sizes/dry_run.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "passes/meta/autocast.h"
#include "passes/meta/failures.h"
#include "passes/meta/meta_kernels.h"
#include "passes/meta/no_hooks.h"
#include "passes/sizes/recorder.h"
#include "runtime/executor.h"

namespace recals {

namespace {

bool takes_loss(const at::Tensor& output) {
  return output.defined() && output.requires_grad() && (output.dim() > 0 || output.is_complex()) && output.numel() > 0;
}

/// Targets of the stand-in loss belong to the caller, so they are made before anything is counted.
std::vector<at::Tensor> targets_for(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> targets;
  for (const auto& output : outputs) {
    targets.push_back(takes_loss(output) ? at::empty(output.sizes(), output.options()) : at::Tensor());
  }
  return targets;
}

/// What the caller does with the outputs: the sum of those that are losses, and a stand-in loss of each other one. The
/// stand-in is the envelope of the usual losses, in units of the output: one is held from the loss to the end (mse_loss
/// returns its mean in such a storage; cross_entropy saves log-probabilities), four are live for a moment in its backward
/// (l1_loss, or squares written out; cross_entropy three), the gradient is one.
at::Tensor stand_in_loss(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& targets) {
  at::Tensor total;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = outputs[i];
    if (!output.defined() || !output.requires_grad()) {
      continue;
    }
    at::Tensor loss = output;
    if (takes_loss(output)) {
      auto real = output.is_complex() ? at::view_as_real(output) : output;
      auto target = output.is_complex() ? at::view_as_real(targets[i]) : targets[i];
      loss = at::mse_loss(real, target);
      output.register_hook([](const at::Tensor& gradient) {
        const auto one = at::empty_like(gradient);
        const auto two = at::empty_like(gradient);
      });
    } else if (output.numel() == 0) {
      loss = output.sum();
    }
    // Outputs may be on several devices; their losses meet on that of the first.
    total = total.defined() ? total + loss.to(total.device()) : loss;
  }
  return total;
}

/// Torch's words on what cannot be run on meta tensors are for the authors of compilers.
void run_backward(const at::Tensor& loss, const Recorder& recorder) {
  auto fail = [&](const std::string& what) {
    const auto& op = recorder.failed_backward_op();
    TORCH_CHECK(what.rfind("recals:", 0) != 0, what); // said already
    TORCH_CHECK(false, "recals: ", op.empty() ? "the backward" : op, ", ", failure_in_words(what, false));
  };
  try {
    torch::autograd::backward({loss}, {}, /*retain_graph=*/false);
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

/// "ReluBackward0 (of layer1.relu, model.py:12)"
std::string autograd_node_in_words(const DryRun& run, int backward_op) {
  std::string words = run.step.backward_ops.at(backward_op);
  const auto& moments = run.ledger.moments;
  const auto moment = std::find_if(moments.begin(), moments.end(), [&](const Moment& m) {
    return m.phase == Phase::Backward && m.backward_op == backward_op;
  });
  if (moment == moments.end() || moment->node < 0) {
    return words;
  }
  const auto& node = run.step.nodes.at(moment->node);
  std::string place = node.module.empty() ? "" : "of " + node.module;
  place += place.empty() || node.where.empty() ? "" : ", ";
  place += node.where;
  return place.empty() ? words : words + " (" + place + ")";
}

} // namespace

std::string overlap_in_words(const DryRun& run, size_t device) {
  const auto& overlap = run.overlaps.at(device);
  return overlap ? autograd_node_in_words(run, overlap->one) + " and " + autograd_node_in_words(run, overlap->other) +
          " may run at the same time"
                 : "";
}

DryRun dry_run(
    const std::shared_ptr<const Program>& program,
    const c10::IValue& self,
    const std::vector<at::Tensor>& inputs,
    const std::vector<Target>& targets) {
  const MetaKernels kernels(program->devices);
  const NoSavedTensorHooks no_hooks;
  at::AutoGradMode grad_mode(true);
  Recorder recorder(*program, targets);
  {
    MetaAllocationScope scope(recorder);
    AutocastOnMeta autocast;
    auto outputs = run(program, self, inputs, &recorder);
    recorder.forward_ends(outputs);
    std::vector<at::Tensor> wanted;
    {
      MetaAllocationPause pause;
      wanted = targets_for(outputs);
    }
    auto loss = stand_in_loss(outputs, wanted);
    TORCH_CHECK(
        loss.defined(),
        "recals: no output of the method requires grad, so there is no training step. Are all parameters frozen?");
    // The single numbers that a loss makes on its way (counts, means, weights).
    const auto numbers = at::empty({16}, loss.options().dtype(at::kFloat));
    autocast.leave_block();
    run_backward(loss, recorder);
  }
  return recorder.finish();
}

} // namespace recals
