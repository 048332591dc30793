#include "passes/sizes/attention.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <torch/version.h>

#include "passes/meta/autocast.h"
#include "passes/meta/in_place_sums.h"
#include "passes/sizes/attention_mask.h"

namespace recals {

namespace {

using torch::jit::Stack;

/// Since some version between these two, tensors of three dimensions are taken as those of one sample.
constexpr bool kTakesSingle = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

constexpr size_t kTensors = 4; ///< the first arguments: query, key, value, mask

/// A tensor of the CPU with all that a choice between kernels looks at, and no element behind it.
at::Tensor likeness(const at::Tensor& tensor) {
  static char nothing = 0;
  auto likeness = at::from_blob(
      &nothing, tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
  likeness.set_requires_grad(tensor.requires_grad());
  return likeness;
}

bool is_single(const AttentionCall& call) {
  return kTakesSingle && call.query.dim() == 3 && call.key.dim() == 3 && call.value.dim() == 3;
}

/// The batch of one that torch adds to a single sample.
void add_batch(AttentionCall& call) {
  for (auto* tensor : {&call.query, &call.key, &call.value}) {
    *tensor = tensor->unsqueeze(0);
  }
  while (call.mask && (call.mask->dim() == 2 || call.mask->dim() == 3)) {
    call.mask = call.mask->unsqueeze(0);
  }
}

/// Torch's own answer, so that it holds for every version and setting. Throws what a step on the CPU would throw.
bool takes_flash(const AttentionCall& call) {
  const auto choice = at::_fused_sdp_choice(
      likeness(call.query),
      likeness(call.key),
      likeness(call.value),
      call.mask ? std::optional(likeness(*call.mask)) : std::nullopt,
      call.dropout,
      call.causal,
      call.scale,
      call.grouped);
  return choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
}

} // namespace

AttentionCall AttentionCall::on(const Stack& stack, size_t count) {
  const auto argument = [&](size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, count); };
  return {
      argument(0).toTensor(),
      argument(1).toTensor(),
      argument(2).toTensor(),
      argument(3).toOptional<at::Tensor>(),
      argument(4).toDouble(),
      argument(5).toBool(),
      argument(6).toOptional<double>(),
      count > 7 && argument(7).toBool()};
}

void run_composite_attention(torch::jit::Operation& composite, Stack& stack) {
  const InPlaceSums mask_is_added_in_place;
  composite(stack);
}

torch::jit::Operation attention_on_cpu(const torch::jit::Node& node) {
  return [composite = node.getOperation(), count = node.inputs().size()](Stack& stack) mutable {
    for (size_t i = 0; i < kTensors; ++i) {
      auto& argument = torch::jit::peek(stack, i, count);
      if (argument.isTensor()) {
        argument = AutocastOnMeta::lowered(argument.toTensor());
      }
    }
    std::optional<AttentionCall> call(AttentionCall::on(stack, count));
    const bool single = is_single(*call);
    if (single) {
      add_batch(*call);
    }
    if (!takes_flash(*call)) {
      call.reset(); // holds nothing meanwhile
      run_composite_attention(composite, stack);
      return;
    }
    torch::jit::drop(stack, count);
    const auto output = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        call->query, call->key, call->value, 0.0, call->causal, additive_mask(call->mask, call->query), call->scale));
    stack.emplace_back(single ? output.squeeze(0) : output);
  };
}

} // namespace recals
