#include "passes/verification.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "passes/graph/specialise.h"
#include "passes/lower/lower.h"
#include "passes/pipeline.h"
#include "runtime/memory_tracker.h"
#include "runtime/rng_state.h"
#include "runtime/step_check.h"

namespace recals {

namespace {

constexpr int64_t kEverything = int64_t{1} << 60; ///< bytes: a budget under which a plan keeps all

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& value : values) {
    collect_tensors(value, tensors);
  }
  return tensors;
}

/// A copy of a leaf that is a leaf again, with a gradient if it has one to get.
void make_leaf(const at::Tensor& copy, const at::Tensor& original) {
  const at::NoGradGuard no_grad;
  copy.detach_();
  if (original.requires_grad()) {
    copy.requires_grad_();
    copy.mutable_grad() = at::zeros_like(copy);
  }
}

torch::jit::Module copy_of(const torch::jit::Module& module) {
  auto copy = module.deepcopy();
  const auto originals = module.parameters();
  const auto copies = copy.parameters();
  TORCH_INTERNAL_ASSERT(originals.size() == copies.size());
  auto original = originals.begin();
  for (const auto& parameter : copies) {
    make_leaf(parameter, *original);
    ++original;
  }
  return copy;
}

std::vector<c10::IValue> copy_of(const std::vector<c10::IValue>& inputs) {
  std::vector<c10::IValue> copies;
  for (const auto& input : inputs) {
    copies.push_back(input.deepcopy());
  }
  const auto originals = tensors_of(inputs);
  const auto tensors = tensors_of(copies);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) {
      make_leaf(tensors[i], originals[i]);
    }
  }
  return copies;
}

at::Tensor mean_of_squares(const c10::IValue& result) {
  at::Tensor total;
  for (const auto& output : tensors_of({result})) {
    if (output.defined() && output.requires_grad()) {
      const auto real = output.is_complex() ? at::view_as_real(output) : output;
      const auto loss = (real.dim() == 0 ? real : real.to(at::kFloat).square().mean()).to(at::kFloat);
      total = total.defined() ? total + loss.to(total.device()) : loss;
    }
  }
  TORCH_CHECK(total.defined(), "recals: no output of the method requires grad, so there is no training step to verify");
  return total;
}

} // namespace

bool Verification::holds() const {
  return differences.empty() && std::all_of(measured.begin(), measured.end(), [&](const auto& device) {
           const auto known = predicted.find(device.first);
           return known == predicted.end() || device.second <= known->second;
         });
}

std::string Verification::text() const {
  std::ostringstream out;
  for (const auto& [device, bytes] : predicted) {
    const auto met = measured.find(device);
    out << device << ": predicted " << bytes << " bytes, measured " << (met == measured.end() ? 0 : met->second)
        << "\n";
  }
  for (const auto& difference : differences) {
    out << "  " << difference << "\n";
  }
  return out.str();
}

Verification verify_step(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options,
    const DeviceLoss& loss) {
  TORCH_CHECK(
      are_here(module, inputs),
      "recals: a step is verified by running it, but module or inputs are on meta, without data");
  auto planned = module;
  if (!is_lowered(module)) {
    auto everything = options;
    everything.limits = {{"", plan::Limit{plan::Limit::Kind::Bytes, kEverything}}};
    planned = optimise(module, method, inputs, everything);
  }
  Verification found;
  for (const auto& device : report_of(planned, method, inputs, options).devices) {
    found.predicted[device.name] = device.peak;
  }
  auto copy = copy_of(planned);
  const auto arguments = copy_of(inputs);
  auto given = tensors_of(inputs);
  for (const auto& parameter : module.parameters()) {
    given.push_back(parameter);
  }
  std::vector<c10::Device> devices{c10::kCPU};
  for (const auto& tensor : given) {
    if (tensor.defined() && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  std::deque<RngGuard> streams;
  for (const auto& device : devices) {
    streams.emplace_back(RngState::of(device));
  }
  const at::AutoGradMode grad_mode(true);
  StepChecks checks;
  const auto tracker = MemoryTracker::start(/*with_curve=*/false);
  try {
    const auto result = copy.get_method(method)(arguments);
    const auto root = loss ? loss(result) : mean_of_squares(result);
    torch::autograd::backward({root});
  } catch (...) {
    tracker->stop();
    throw;
  }
  tracker->stop();
  TORCH_CHECK(
      checks.steps > 0 || !is_lowered(module),
      "recals: the module did not run its plan, so there was nothing to verify; is it in the mode, and under the "
      "settings, that the plan was made for?");
  for (const auto& [device, use] : tracker->devices()) {
    found.measured[device] = use.peak;
  }
  found.differences = checks.differences;
  return found;
}

} // namespace recals
