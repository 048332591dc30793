#include "passes/sizes/device_rules.h"

#include <map>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/version.h>

#include "passes/meta/autocast.h"
#include "passes/meta/meta_kernels.h"
#include "passes/sizes/attention_mask.h"
#include "passes/sizes/cuda_rules.h"
#include "passes/sizes/recurrent_rules.h"

namespace recals {

namespace {

using torch::jit::Stack;

/// Does scaled_dot_product_attention take the CPU's flash kernel? The conditions are those of torch's own choice
/// (ATen/native/transformers/sdp_utils_cpp.cpp); grouped queries are left to the composite form.
bool takes_flash(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool grouped) {
  if (!at::globalContext().userEnabledFlashSDP() || dropout != 0.0 || grouped) {
    return false;
  }
  for (const auto* tensor : {&query, &key, &value}) {
    if (tensor->dim() != 4 || tensor->size(2) == 0 || tensor->size(3) != query.size(3) || tensor->stride(3) != 1 ||
        tensor->size(0) != query.size(0) || tensor->size(1) != query.size(1) ||
        !at::isFloatingType(tensor->scalar_type())) {
      return false;
    }
  }
  return !mask || !mask->requires_grad();
}

/// Since some version between these two, three dimensions are taken as those of one sample.
constexpr bool kTakesSingle = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

torch::jit::Operation attention(const torch::jit::Node& node) {
  return [composite = node.getOperation(), count = node.inputs().size()](Stack& stack) mutable {
    auto argument = [&](size_t i) -> const c10::IValue& { return stack[stack.size() - count + i]; };
    const auto given = [&](size_t i) { return AutocastOnMeta::lowered(argument(i).toTensor()); };
    auto query = given(0);
    auto key = given(1);
    auto value = given(2);
    const auto mask = argument(3).isNone() ? std::nullopt : std::optional(given(3));
    const bool single = kTakesSingle && query.dim() == 3 && key.dim() == 3 && value.dim() == 3;
    if (single) {
      for (auto* tensor : {&query, &key, &value}) {
        *tensor = tensor->unsqueeze(0);
      }
    }
    const bool grouped = count > 7 && argument(7).toBool();
    if (!takes_flash(query, key, value, mask, argument(4).toDouble(), grouped)) {
      composite(stack);
      return;
    }
    const bool causal = argument(5).toBool();
    const auto scale = argument(6).toOptional<double>();
    torch::jit::drop(stack, count);
    const auto output = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, additive_mask(mask, query), scale));
    stack.emplace_back(single ? output.squeeze(0) : output);
  };
}

torch::jit::Operation on_cpu(const torch::jit::Node& node) {
  if (node.kind() == c10::aten::scaled_dot_product_attention) {
    return attention(node);
  }
  if (auto recurrent = recurrent_on_meta(node)) {
    return *recurrent;
  }
  return node.getOperation();
}

/// Other accelerators: torch fuses dropout on those that bring a kernel of their own for it.
torch::jit::Operation on_accelerator(const torch::jit::Node& node) {
  return node.kind() == c10::aten::dropout ? fused_dropout(node.getOperation()) : node.getOperation();
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

torch::jit::Operation on_any(const torch::jit::Node& node, const DeviceTable& devices) {
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

} // namespace

std::shared_ptr<const Program> compile_for_meta(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const DeviceTable& devices) {
  const MetaKernels kernels(devices); // constants are moved to their meta devices
  CompileOptions options;
  options.meta = &devices;
  options.on_meta = &on_any;
  return Program::compile(graph, options);
}

} // namespace recals
