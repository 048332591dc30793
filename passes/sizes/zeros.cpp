#include "passes/sizes/zeros.h"

#include <torch/version.h>

#include "passes/sizes/scratch.h"

namespace recals {

namespace {

/// Since some version between these two, meta goes the way of the other devices.
constexpr bool kSameWayOnMeta = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

constexpr int64_t kPosition = sizeof(int64_t);

int64_t rows_along(const at::Tensor& tensor, int64_t dim) {
  return tensor.dim() == 0 || tensor.size(dim) == 0 ? 1 : tensor.numel() / tensor.size(dim);
}

/// Most is held while what comes after the first zero is selected: besides the result four more of its size, of every
/// element how many zeros came before it and five marks, and twice its position in the selection. Of every row the
/// place of its first zero, twice, three values and two marks.
int64_t cumulative_product(const KernelCall& call) {
  const auto* input = defined(call.inputs, 1);
  if (input == nullptr) {
    return 0;
  }
  const auto element = static_cast<int64_t>(input->element_size());
  const int64_t rows = rows_along(*input, call.inputs.at(2).toInt());
  return 4 * nbytes(input) + input->numel() * (3 * kPosition + 5) + rows * (2 * kPosition + 3 * element + 2);
}

/// Along a dimension: which elements are zero, and how many of each row.
int64_t zeros_of_rows(const KernelCall& call) {
  const auto* gradient = defined(call.inputs, 0);
  const auto* result = defined(call.outputs, 0);
  return gradient == nullptr || result == nullptr ? 0 : result->numel() + gradient->numel() * kPosition;
}

/// Of all elements: where the zeros are, and what finds them: a mark and, where elements do not lie in their order, a count
/// and a copy of each. If there are several the result is zero, and nothing else is held.
int64_t places_of_zeros(const KernelCall& call) {
  const auto* result = defined(call.outputs, 0);
  const auto* input = defined(call.inputs, 0);
  if (result == nullptr || input == nullptr) {
    return 0;
  }
  const int64_t elements = result->numel();
  const int64_t in_other_order = input->is_contiguous() ? 0 : elements * kPosition + nbytes(input);
  return elements * result->dim() * kPosition + in_other_order;
}

} // namespace

bool looks_for_zeros(const std::string& op) {
  return !kSameWayOnMeta && op == "aten::cumprod_backward";
}

int64_t bytes_for_zeros(const KernelCall& call) {
  if (looks_for_zeros(call.op)) {
    return cumulative_product(call);
  }
  if (call.within == "ProdBackward1" && call.op == "aten::mul") {
    return zeros_of_rows(call);
  }
  if (call.within == "ProdBackward0" && call.op == "aten::view") {
    return places_of_zeros(call);
  }
  return 0;
}

} // namespace recals
