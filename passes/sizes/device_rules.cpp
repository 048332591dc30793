#include "passes/sizes/device_rules.h"

#include <map>

#include <ATen/ATen.h>

#include "passes/meta/meta_kernels.h"
#include "passes/sizes/attention.h"
#include "passes/sizes/cuda_rules.h"
#include "passes/sizes/recurrent_rules.h"

namespace recals {

namespace {

using torch::jit::Stack;

torch::jit::Operation on_cpu(const torch::jit::Node& node) {
  if (node.kind() == c10::aten::scaled_dot_product_attention) {
    return attention_on_cpu(node);
  }
  if (auto recurrent = recurrent_on_meta(node)) {
    return *recurrent;
  }
  return node.getOperation();
}

/// Other accelerators: torch fuses dropout on those that bring a kernel of their own for it.
torch::jit::Operation on_accelerator(const torch::jit::Node& node) {
  switch (node.kind()) {
    case c10::aten::dropout:
      return fused_dropout(node.getOperation());
    case c10::aten::scaled_dot_product_attention:
      return [composite = node.getOperation()](Stack& stack) mutable { run_composite_attention(composite, stack); };
    default:
      return node.getOperation();
  }
}

torch::jit::Operation on_kind(const torch::jit::Node& node, c10::DeviceType kind) {
  switch (kind) {
    case c10::kCPU:
      return on_cpu(node);
    case c10::kCUDA:
      return on_cuda(node);
    default:
      return on_accelerator(node);
  }
}

/// The kind of device that a call runs on: that of its first tensor that is not on the CPU.
c10::DeviceType kind_of_call(const Stack& stack, size_t arguments, const DeviceTable& devices) {
  auto kind = c10::kCPU;
  auto visit = [&](const at::Tensor& tensor) {
    if (kind == c10::kCPU && tensor.defined()) {
      kind = devices.real(tensor.device()).type();
    }
  };
  for (auto argument = stack.end() - static_cast<std::ptrdiff_t>(arguments); argument != stack.end(); ++argument) {
    if (argument->isTensor()) {
      visit(argument->toTensor());
    } else if (argument->isTensorList()) {
      for (const at::Tensor& tensor : argument->toTensorList()) {
        visit(tensor);
      }
    }
  }
  return kind;
}

} // namespace

torch::jit::Operation operation_on_meta(const torch::jit::Node& node, const DeviceTable& devices) {
  std::map<c10::DeviceType, torch::jit::Operation> by_kind;
  for (const auto& device : devices.all()) {
    by_kind.try_emplace(device.type(), on_kind(node, device.type()));
  }
  if (by_kind.size() <= 1) {
    return by_kind.empty() ? node.getOperation() : by_kind.begin()->second;
  }
  by_kind.try_emplace(c10::kCPU, on_kind(node, c10::kCPU));
  return [by_kind, devices, arguments = node.inputs().size()](Stack& stack) mutable {
    by_kind.at(kind_of_call(stack, arguments, devices))(stack);
  };
}

std::shared_ptr<const Program> compile_for_meta(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const DeviceTable& devices) {
  const MetaKernels kernels(devices); // constants are moved to their meta devices
  CompileOptions options;
  options.meta = &devices;
  options.on_meta = &operation_on_meta;
  return Program::compile(graph, options);
}

} // namespace recals
