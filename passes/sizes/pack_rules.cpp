#include "passes/sizes/pack_rules.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/Tensor.h>

#include "runtime/packing.h"

namespace recals {

namespace {

/// What they save unseen is their noise: zero, or one other value.
bool draws_two_values(const std::string& op) {
  static const std::unordered_set<std::string> table = {
      "aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"};
  return table.count(op) != 0;
}

/// Slots of which the backward's kernel reads whether an element is positive, and nothing else.
bool reads_where_positive(const std::string& saved_by) {
  return saved_by == "ReluBackward0.result_";
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
  if (slot.internal && draws_two_values(slot.op)) {
    return "two values";
  }
  return reads_where_positive(slot.saved_by) ? "where positive" : "";
}

double seconds_to_move(int64_t bytes) {
  Work work;
  work.bytes = bytes;
  return seconds_of(work);
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

std::vector<plan::Pack> packs_for(const std::vector<SlotFacts>& slots, int64_t bytes) {
  // A lossless form needs one slot that vouches for the storage's elements, a lossy one that all slots read no more.
  const Packer* best = nullptr;
  const SlotFacts* vouching = nullptr;
  for (const auto& slot : slots) {
    const auto name = packer_for(slot);
    if (name.empty()) {
      continue;
    }
    const auto& form = packer(name);
    const bool serves = form.lossless || std::all_of(slots.begin(), slots.end(), [&](const SlotFacts& other) {
                          return packer_for(other) == name && other.dtype == slot.dtype;
                        });
    const bool whole = slot.elements * static_cast<int64_t>(c10::elementSize(slot.dtype)) == bytes;
    if (serves && whole && form.takes(slot.dtype)) {
      best = &form;
      vouching = &slot;
      break;
    }
  }
  if (best == nullptr || best->packed_bytes(vouching->elements, vouching->dtype) >= bytes) {
    return {};
  }
  plan::Pack pack;
  pack.kind = best->name;
  pack.bytes = best->packed_bytes(vouching->elements, vouching->dtype);
  pack.lossless = best->lossless;
  pack.pack_seconds = pack.unpack_seconds = seconds_to_move(bytes + pack.bytes);
  pack.pack_transient = pack.bytes;
  pack.unpack_transient = bytes;
  return {pack};
}

} // namespace recals
