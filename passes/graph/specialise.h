#pragma once

/// A method of a module as one straight-line graph of tensor ops, for inputs of given shapes.
///
/// The method is executed on meta tensors: calls are entered, branches that the shapes decide are taken, loops are
/// unrolled, everything that is no tensor becomes a constant. What is left are the tensor ops in the order in which the
/// eager module would run them, none removed, none moved, reading parameters by the path of their module.

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <string>
#include <unordered_set>

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "passes/graph/meta_twin.h"

namespace recals {

struct FlatGraph {
  /// Inputs: self, then the tensors of the example inputs in order. Outputs: the tensors of the result in order. The
  /// scope of a node is the path of the module it belongs to.
  std::shared_ptr<torch::jit::Graph> graph;
  /// Names of the graph's values that the module makes in place, and the graph does not (passes/graph/functionalise.h).
  std::unordered_set<std::string> in_place;
  /// The example inputs and the result, on meta; their tensors, in order, are the graph's inputs and outputs.
  std::vector<c10::IValue> inputs;
  c10::IValue result;
  /// The example inputs and the autocast state as `describe_step` gives them; a call is checked against it.
  std::string signature;
  /// Non-tensor attributes that the graph depends on, "layer1.0.bn1.training=True"; and ops::kDictsInOrder where the method goes
  /// through dicts and an input is one.
  std::vector<std::string> attributes;
  /// The devices of the step's tensors: those of the module and its inputs, and those that the method names.
  DeviceTable devices;
};

/// What runs on meta in place of a node: CompileOptions::on_meta. The shapes, strides and aliases of a step are those of the
/// kernels that the devices choose.
using OperationOnMeta = torch::jit::Operation (*)(const torch::jit::Node& node, const DeviceTable& devices);

/// `module`: the module object. `inputs`: the arguments of `method` after self, defaults filled in. Throws c10::Error
/// naming the node and its source line for what cannot be known from shapes.
/// `target`: the device that the tensors of module and inputs stand for, instead of the one that they are on.
FlatGraph specialise(
    const c10::IValue& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    std::optional<c10::Device> target,
    OperationOnMeta on_meta);

/// The attribute of a node with the path of the module that it belongs to, where a front end has made all of them one
/// method: it takes the place of the path that the node's method is called on.
c10::Symbol module_attribute();

/// Tensors of a nested value, in order (dicts by key).
void collect_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors);

/// `value` with `tensors` in place of its own, in the order of collect_tensors.
c10::IValue with_tensors(const c10::IValue& value, const std::vector<at::Tensor>& tensors);

/// Is there one?
bool holds_tensor(const c10::IValue& value);

} // namespace recals
