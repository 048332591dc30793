#include "passes/sizes/cuda_rules.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "passes/meta/autocast.h"
#include "passes/sizes/attention.h"
#include "passes/sizes/attention_mask.h"

namespace recals {

namespace {

using torch::jit::Operation;
using torch::jit::Stack;

const c10::IValue& argument(const Stack& stack, size_t count, size_t i) {
  return stack[stack.size() - count + i];
}

bool is_half(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type());
}

// --- attention ---------------------------------------------------------------------------------------------------------

bool shapes_fit(const AttentionCall& call) {
  const auto& query = call.query;
  for (const auto* tensor : {&query, &call.key, &call.value}) {
    if (tensor->dim() != 4 || tensor->size(0) != query.size(0) || tensor->size(2) == 0 || tensor->stride(3) != 1) {
      return false;
    }
  }
  return call.key.size(1) == call.value.size(1) && call.key.size(3) == query.size(3);
}

/// The conditions of ATen/native/transformers/cuda/sdp_utils.cpp, can_use_flash_attention, on a device of compute
/// capability 8.0 or more.
bool takes_flash(const AttentionCall& call) {
  const auto& [query, key, value, mask, dropout, causal, scale, grouped] = call;
  if (!at::globalContext().userEnabledFlashSDP() || !is_half(query) || mask || !shapes_fit(call)) {
    return false;
  }
  const bool heads_fit = grouped ? query.size(1) % key.size(1) == 0 : query.size(1) == key.size(1);
  return heads_fit && value.size(3) == query.size(3) && query.size(3) <= 256 &&
      (!causal || query.size(2) == key.size(2));
}

/// can_use_mem_efficient_attention of the same file. That it takes grouped heads in some versions is left out: the
/// composite form holds more.
bool takes_efficient(const AttentionCall& call) {
  const auto& query = call.query;
  if (!at::globalContext().userEnabledMemEfficientSDP() || !shapes_fit(call) || query.size(1) != call.key.size(1) ||
      !(is_half(query) || query.scalar_type() == at::kFloat)) {
    return false;
  }
  const int64_t alignment = is_half(query) ? 8 : 4;
  return query.size(3) > 0 && query.size(3) % alignment == 0 && call.value.size(3) % alignment == 0;
}

/// The last dimension filled up to a multiple of `unit`.
at::Tensor filled_up(const at::Tensor& tensor, int64_t unit) {
  const int64_t missing = (unit - tensor.size(-1) % unit) % unit;
  return missing == 0 ? tensor : at::constant_pad_nd(tensor, {0, missing});
}

/// ATen/native/transformers/attention.cpp, scaled_dot_product_attention: channels filled up to a multiple of 8.
at::Tensor flash(const AttentionCall& call) {
  const double scale = call.scale.value_or(1.0 / std::sqrt(static_cast<double>(call.query.size(3))));
  const auto result = at::_scaled_dot_product_flash_attention(
      filled_up(call.query, 8),
      filled_up(call.key, 8),
      filled_up(call.value, 8),
      call.dropout,
      call.causal,
      /*return_debug_mask=*/false,
      scale);
  return std::get<0>(result).narrow(3, 0, call.query.size(3));
}

/// preprocess_mask of the same file: rows of the mask filled up to a multiple of 16.
at::Tensor efficient(const AttentionCall& call) {
  auto mask = additive_mask(call.mask, call.query);
  if (mask) {
    auto sizes = call.query.sizes().vec();
    sizes[3] = call.key.size(2);
    mask = filled_up(*mask, 16).narrow(-1, 0, mask->size(-1)).expand(sizes);
  }
  const bool trains = at::GradMode::is_enabled() &&
      (call.query.requires_grad() || call.key.requires_grad() || call.value.requires_grad());
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      call.query, call.key, call.value, mask, trains, call.dropout, call.causal, call.scale));
}

/// cuDNN's attention, which Hopper may prefer, holds what flash attention holds. The composite form draws its dropout with
/// a mask of the CPU's size: an upper bound.
Operation attention(Operation composite, size_t count) {
  return [composite = std::move(composite), count](Stack& stack) mutable {
    auto call = AttentionCall::on(stack, count);
    for (auto* tensor : {&call.query, &call.key, &call.value}) {
      *tensor = AutocastOnMeta::lowered(*tensor);
    }
    if (call.mask) {
      call.mask = AutocastOnMeta::lowered(*call.mask);
    }
    if (takes_flash(call)) {
      torch::jit::drop(stack, count);
      stack.emplace_back(flash(call));
    } else if (takes_efficient(call)) {
      torch::jit::drop(stack, count);
      stack.emplace_back(efficient(call));
    } else {
      run_composite_attention(composite, stack);
    }
  };
}

// --- batch norm --------------------------------------------------------------------------------------------------------

/// The conditions of ATen/native/Normalization.cpp, _select_batch_norm_backend, in training. Whether cuDNN takes bfloat16
/// depends on versions and changes no bytes.
bool takes_cudnn(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& mean,
    const at::Tensor& variance) {
  constexpr int64_t largest_batch = 880801;
  return at::globalContext().userEnabledCuDNN() && input.scalar_type() != at::kBFloat16 && weight.defined() &&
      bias.defined() && weight.scalar_type() != at::kBFloat16 &&
      (input.scalar_type() != at::kHalf || weight.scalar_type() == at::kFloat) &&
      mean.defined() == variance.defined() && input.dim() >= 3 && input.size(0) <= largest_batch && input.numel() > 0 &&
      input.numel() < std::numeric_limits<int32_t>::max();
}

Operation batch_norm(Operation composite) {
  return [composite = std::move(composite)](Stack& stack) mutable {
    constexpr size_t count = 9;
    const auto tensor = [&](size_t i) {
      return argument(stack, count, i).toOptional<at::Tensor>().value_or(at::Tensor());
    };
    const auto input = tensor(0);
    const auto weight = tensor(1);
    const auto bias = tensor(2);
    const auto mean = tensor(3);
    const auto variance = tensor(4);
    const bool training = argument(stack, count, 5).toBool();
    if (!training || !argument(stack, count, 8).toBool() || !takes_cudnn(input, weight, bias, mean, variance)) {
      composite(stack);
      return;
    }
    const double momentum = argument(stack, count, 6).toDouble();
    const double epsilon = argument(stack, count, 7).toDouble();
    torch::jit::drop(stack, count);
    stack.emplace_back(std::get<0>(at::cudnn_batch_norm(
        input.contiguous(input.suggest_memory_format()),
        weight.contiguous(),
        bias.contiguous(),
        mean,
        variance,
        training,
        momentum,
        epsilon)));
  };
}

// --- recurrent networks ------------------------------------------------------------------------------------------------

/// cuDNN's numbers of the kinds (ATen/native/cudnn/RNN.cpp).
std::optional<int64_t> cudnn_mode(const torch::jit::Node& node) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr || schema->overload_name() != "input") { // packed sequences stay as they are
    return std::nullopt;
  }
  const std::pair<const char*, int64_t> modes[] = {
      {"aten::rnn_relu", 0}, {"aten::rnn_tanh", 1}, {"aten::lstm", 2}, {"aten::gru", 3}};
  for (const auto& [name, mode] : modes) {
    if (schema->name() == name) {
      return mode;
    }
  }
  return std::nullopt;
}

/// One call of _cudnn_rnn for all layers. Its weights are taken to be scattered, so that they are copied into one buffer
/// which the backward keeps: an upper bound, as modules that were flattened on the device need no copy.
Operation recurrent(Operation composite, int64_t mode) {
  return [composite = std::move(composite), mode](Stack& stack) mutable {
    constexpr size_t count = 9;
    constexpr int64_t lstm = 2;
    const auto input = argument(stack, count, 0).toTensor();
    const auto type = input.scalar_type();
    if (!at::globalContext().userEnabledCuDNN() || input.numel() == 0 ||
        !(is_half(input) || type == at::kFloat || type == at::kDouble)) {
      composite(stack);
      return;
    }
    const auto states = mode == lstm ? argument(stack, count, 1).toTensorVector()
                                     : std::vector<at::Tensor>{argument(stack, count, 1).toTensor()};
    const auto weights = argument(stack, count, 2).toTensorVector();
    const bool biases = argument(stack, count, 3).toBool();
    const auto layers = argument(stack, count, 4).toInt();
    const double probability = argument(stack, count, 5).toDouble();
    const bool train = argument(stack, count, 6).toBool();
    const bool bidirectional = argument(stack, count, 7).toBool();
    const bool batch_first = argument(stack, count, 8).toBool();
    const int64_t hidden = mode == lstm ? states[1].size(2) : states[0].size(2);
    const int64_t projected = states[0].size(2) == hidden ? 0 : states[0].size(2);
    const auto per_layer = static_cast<int64_t>(weights.size()) / (layers * (bidirectional ? 2 : 1));
    TORCH_CHECK(per_layer >= (biases ? 4 : 2), "recals: a recurrent network with too few weights");
    torch::jit::drop(stack, count);
    auto [output, last, last_cell, reserve, buffer] = at::_cudnn_rnn(
        input,
        weights,
        per_layer,
        /*weight_buf=*/{},
        states[0].contiguous(),
        mode == lstm ? std::optional(states[1].contiguous()) : std::nullopt,
        mode,
        hidden,
        projected,
        layers,
        batch_first,
        train ? probability : 0,
        train,
        bidirectional,
        /*batch_sizes=*/{},
        /*dropout_state=*/{});
    stack.emplace_back(output);
    stack.emplace_back(last);
    if (mode == lstm) {
      stack.emplace_back(last_cell);
    }
  };
}

} // namespace

Operation fused_dropout(Operation composite) {
  return [composite = std::move(composite)](Stack& stack) mutable {
    constexpr size_t count = 3;
    const auto input = argument(stack, count, 0).toTensor();
    const double probability = argument(stack, count, 1).toDouble();
    if (!argument(stack, count, 2).toBool() || probability <= 0 || probability >= 1 || input.numel() == 0) {
      composite(stack);
      return;
    }
    torch::jit::drop(stack, count);
    stack.emplace_back(std::get<0>(at::native_dropout(input, probability, /*train=*/true)));
  };
}

Operation on_cuda(const torch::jit::Node& node) {
  auto composite = node.getOperation();
  if (node.kind() == c10::aten::dropout) {
    return fused_dropout(std::move(composite));
  }
  if (node.kind() == c10::aten::scaled_dot_product_attention) {
    return attention(std::move(composite), node.inputs().size());
  }
  if (node.kind() == c10::aten::batch_norm) {
    return batch_norm(std::move(composite));
  }
  if (const auto mode = cudnn_mode(node)) {
    return recurrent(std::move(composite), *mode);
  }
  return composite;
}

} // namespace recals
