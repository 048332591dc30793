#include "passes/sizes/pack_rules.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/Tensor.h>

#include "runtime/packing.h"

namespace recals {

namespace {

/// Noise that the op saves unseen: zero, or one other value.
bool has_two_values(const SlotFacts& slot) {
  static const std::unordered_set<std::string> dropouts = {
      "aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"};
  // Attention written out has its own dropout; what else it multiplies with is a number.
  const bool of_attention = slot.op == "aten::scaled_dot_product_attention" && slot.saved_by == "MulBackward0.other_";
  return slot.internal && (dropouts.count(slot.op) != 0 || of_attention);
}

/// The packer where the backward's kernel reads whether an element is positive, and nothing else; "": it reads more.
const char* reads_where_positive(const SlotFacts& slot) {
  return slot.saved_by == "ReluBackward0.result_"   ? "where positive" // passes the gradient unless <= 0
      : slot.saved_by == "LeakyReluBackward0.self_" ? "where above zero" // scales it unless > 0
                                                    : "";
}

/// The backward's kernel asks for sizes and strides, and reads no element.
bool reads_nothing(const SlotFacts& slot) {
  static const std::unordered_set<std::string> table = {
      "MaxPool2DWithIndicesBackward0.self_",
      "MaxPool3DWithIndicesBackward0.self_",
      "AdaptiveMaxPool2DBackward0.self_",
      "AdaptiveMaxPool3DBackward0.self_",
      "AvgPool2DBackward0.self_",
      "AvgPool3DBackward0.self_",
      "AdaptiveAvgPool2DBackward0.self_",
      "AdaptiveAvgPool3DBackward0.self_",
      "ReflectionPad1DBackward0.self_",
      "ReflectionPad2DBackward0.self_",
      "ReflectionPad3DBackward0.self_",
      "ReplicationPad1DBackward0.self_",
      "ReplicationPad2DBackward0.self_",
      "ReplicationPad3DBackward0.self_"};
  return table.count(slot.saved_by) != 0;
}

const char* name_of_positions(int64_t below) {
  return below <= (int64_t{1} << 8) ? "positions u8"
      : below <= (int64_t{1} << 16) ? "positions u16"
      : below <= (int64_t{1} << 32) ? "positions u32"
                                    : "";
}

/// The packer for what one slot says about its storage; "": none.
std::string packer_for(const SlotFacts& slot) {
  if (slot.dtype == c10::kBool) {
    return "booleans";
  }
  if (!slot.dense) {
    return "";
  }
  if (slot.dtype == c10::kLong && slot.positions_below > 0) {
    return name_of_positions(slot.positions_below);
  }
  if (has_two_values(slot)) {
    return "two values";
  }
  return reads_nothing(slot) ? "unread" : reads_where_positive(slot);
}

double seconds_to_move(int64_t bytes, const CostModel& cost_model) {
  Work work;
  work.bytes = bytes;
  return seconds_of(work, cost_model);
}

} // namespace

int64_t positions_below(const KernelCall& call) {
  // How many of the last dimensions a position runs over; 0: any one.
  static const std::unordered_map<std::string, int> table = {
      {"aten::max_pool2d_with_indices", 2},
      {"aten::max_pool3d_with_indices", 3},
      {"aten::adaptive_max_pool2d", 2},
      {"aten::adaptive_max_pool3d", 3},
      {"aten::fractional_max_pool2d", 2},
      {"aten::fractional_max_pool3d", 3},
      {"aten::max", 0},
      {"aten::min", 0},
      {"aten::sort", 0},
      {"aten::topk", 0},
      {"aten::kthvalue", 0},
      {"aten::median", 0},
      {"aten::mode", 0},
  };
  const auto row = table.find(call.op);
  if (row == table.end() || call.inputs.empty() || !call.inputs[0].isTensor()) {
    return 0;
  }
  const auto sizes = call.inputs[0].toTensor().sizes();
  int64_t below = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (row->second == 0) {
      below = std::max(below, sizes[i]);
    } else if (sizes.size() - i <= static_cast<size_t>(row->second)) {
      below *= sizes[i];
    }
  }
  return below;
}

std::vector<plan::Pack> packs_for(const std::vector<SlotFacts>& slots, int64_t bytes, const CostModel& cost_model) {
  std::vector<plan::Pack> packs;
  for (const auto& slot : slots) {
    const auto name = packer_for(slot);
    if (name.empty() || slot.elements * static_cast<int64_t>(c10::elementSize(slot.dtype)) != bytes) {
      continue;
    }
    const auto& form = packer(name);
    // A lossless form needs one slot that vouches for the elements; for a lossy one, no slot may read more.
    const bool serves = form.lossless || std::all_of(slots.begin(), slots.end(), [&](const SlotFacts& other) {
                          return other.dtype == slot.dtype && (packer_for(other) == name || reads_nothing(other));
                        });
    plan::Pack pack;
    pack.kind = name;
    pack.bytes = form.packed_bytes(slot.elements, slot.dtype);
    pack.lossless = form.lossless;
    pack.pack_transient = pack.bytes;
    pack.unpack_transient = bytes;
    if (pack.bytes > 0) {
      pack.pack_seconds = pack.unpack_seconds = seconds_to_move(bytes + pack.bytes, cost_model);
    }
    const bool known =
        std::any_of(packs.begin(), packs.end(), [&](const plan::Pack& other) { return other.kind == name; });
    if (serves && !known && form.takes(slot.dtype) && pack.bytes < bytes) {
      packs.push_back(std::move(pack));
    }
  }
  std::sort(packs.begin(), packs.end(), [](const plan::Pack& a, const plan::Pack& b) { return a.bytes < b.bytes; });
  return packs;
}

} // namespace recals
