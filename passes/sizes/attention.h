#pragma once

/// scaled_dot_product_attention as the CPU runs it. On meta, torch always takes the composite form.

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

namespace recals {

/// A call's arguments.
struct AttentionCall {
  at::Tensor query; ///< [batch, heads, positions, channels], as key and value
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
  double dropout;
  bool causal;
  std::optional<double> scale;
  bool grouped;

  /// The last `count` values of `stack`, which stay there.
  static AttentionCall on(const torch::jit::Stack& stack, size_t count);
};

/// What runs on meta in place of `node`, a scaled_dot_product_attention.
torch::jit::Operation attention_on_cpu(const torch::jit::Node& node);

/// `composite`, torch's own op, on meta tensors: as a device runs it that has no kernel for these arguments.
void run_composite_attention(torch::jit::Operation& composite, torch::jit::Stack& stack);

} // namespace recals
