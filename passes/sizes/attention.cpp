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

/// A call without the batch of one that torch adds to a single sample.
struct Attention {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
  double dropout;
  bool causal;
  std::optional<double> scale;
  bool grouped;

  bool is_single() const {
    return kTakesSingle && query.dim() == 3 && key.dim() == 3 && value.dim() == 3;
  }

  void add_batch() {
    for (auto* tensor : {&query, &key, &value}) {
      *tensor = tensor->unsqueeze(0);
    }
    while (mask && (mask->dim() == 2 || mask->dim() == 3)) {
      mask = mask->unsqueeze(0);
    }
  }

  /// Torch's own answer, so that it holds for every version and setting. Throws what a step on the CPU would throw.
  bool takes_flash() const {
    const auto choice = at::_fused_sdp_choice(
        likeness(query),
        likeness(key),
        likeness(value),
        mask ? std::optional(likeness(*mask)) : std::nullopt,
        dropout,
        causal,
        scale,
        grouped);
    return choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
  }
};

} // namespace

void run_composite_attention(torch::jit::Operation& composite, Stack& stack) {
  const InPlaceSums mask_is_added_in_place;
  composite(stack);
}

torch::jit::Operation attention_on_cpu(const torch::jit::Node& node) {
  return [composite = node.getOperation(), count = node.inputs().size()](Stack& stack) mutable {
    auto argument = [&](size_t i) -> c10::IValue& { return stack[stack.size() - count + i]; };
    for (size_t i = 0; i < kTensors; ++i) {
      if (argument(i).isTensor()) {
        argument(i) = AutocastOnMeta::lowered(argument(i).toTensor());
      }
    }
    std::optional<Attention> call(
        {argument(0).toTensor(),
         argument(1).toTensor(),
         argument(2).toTensor(),
         argument(3).toOptional<at::Tensor>(),
         argument(4).toDouble(),
         argument(5).toBool(),
         argument(6).toOptional<double>(),
         count > 7 && argument(7).toBool()});
    const bool single = call->is_single();
    if (single) {
      call->add_batch();
    }
    if (!call->takes_flash()) {
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
