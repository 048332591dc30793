#pragma once

/// A small training step for tests: a module defined from source, its analysis, plans made by hand, and runs of them on
/// real CPU tensors.

#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>

#include "passes/boundaries/boundaries.h"
#include "passes/pipeline.h"
#include "passes/sizes/device_rules.h"
#include "runtime/executor.h"
#include "runtime/memory_tracker.h"

namespace recals::testing {

/// A module with parameters of the given shapes (random, seeded) and the method `forward` from TorchScript source.
inline torch::jit::Module module_of(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& parameters,
    const std::string& source) {
  at::manual_seed(0);
  torch::jit::Module module("TestNet");
  for (const auto& [name, shape] : parameters) {
    module.register_parameter(name, at::randn(shape).mul_(0.2), /*is_buffer=*/false);
    module.attr(name).toTensor().set_requires_grad(true);
  }
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(source);
  return module;
}

/// A plan from a choice for each storage.
inline plan::Plan plan_of_choices(
    const Analysis& analysis,
    const std::function<plan::Choice(const plan::Storage&)>& choose) {
  auto plan = plan::keep_all(analysis.sizes.step);
  for (size_t s = 0; s < plan.choices.size(); ++s) {
    plan.choices[s] = choose(analysis.sizes.step.storages[s]);
  }
  plan.regions = plan::regions_of(analysis.sizes.step, plan.choices);
  plan.predicted = plan::simulate(analysis.sizes.step, plan.choices);
  return plan;
}

/// Storages by name: "%relu.1" or "%dropout.1 saved[0]".
inline plan::Plan plan_that_drops(const Analysis& analysis, const std::function<bool(const plan::Storage&)>& drop) {
  return plan_of_choices(analysis, [&](const plan::Storage& storage) -> plan::Choice {
    return drop(storage) ? plan::Fate::Recompute : plan::Fate::Keep;
  });
}

inline bool everything(const plan::Storage&) {
  return true;
}

/// The flat graph with the plan's boundaries, compiled.
inline std::shared_ptr<const Program> program_under(const Analysis& analysis, const plan::Plan& plan, bool meta) {
  auto graph = analysis.flat.graph->copy();
  const auto numbering = compile_for_meta(graph, analysis.flat.devices);
  insert_boundaries(graph, *numbering, analysis.sizes, plan);
  return meta ? compile_for_meta(graph, analysis.flat.devices) : Program::compile(graph);
}

struct StepResult {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients; ///< of the parameters
  at::Tensor draw; ///< a random number drawn after the step
  int64_t peak = 0; ///< bytes above the start
  int64_t left = 0; ///< bytes live after everything but gradients and outputs is gone
};

/// Forward, sum of the outputs, backward, all under `seed`.
inline StepResult run_step(
    const torch::jit::Module& module,
    const std::shared_ptr<const Program>& program,
    const std::vector<at::Tensor>& inputs,
    uint64_t seed = 1) {
  StepResult result;
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    parameters.push_back(parameter);
    parameters.back().mutable_grad() = at::zeros_like(parameter);
  }
  at::manual_seed(seed);
  auto tracker = MemoryTracker::start(false);
  {
    auto outputs = run(program, module._ivalue(), inputs);
    at::Tensor loss;
    for (const auto& output : outputs) {
      loss = loss.defined() ? loss + output.sum() : output.sum();
    }
    torch::autograd::backward({loss});
    for (const auto& output : outputs) {
      result.outputs.push_back(output.detach().clone());
    }
  }
  const auto devices = tracker->devices();
  tracker->stop();
  result.draw = at::rand({4});
  int64_t kept = 0;
  for (const auto& output : result.outputs) {
    kept += static_cast<int64_t>(output.nbytes());
  }
  if (devices.count("cpu") != 0) {
    result.peak = devices.at("cpu").peak;
    result.left = devices.at("cpu").live - kept;
  }
  for (const auto& parameter : parameters) {
    result.gradients.push_back(parameter.grad());
  }
  return result;
}

} // namespace recals::testing
