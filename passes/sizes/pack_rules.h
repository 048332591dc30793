#pragma once

/// Which packers may stand for a storage, from the slots that it is saved by.

#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "passes/plan/step_graph.h"
#include "passes/sizes/cost_model.h"
#include "passes/sizes/kernel_rules.h"

namespace recals {

/// One slot on a storage, as a dry run sees it.
struct SlotFacts {
  std::string op; ///< of the program's node, "aten::dropout"
  std::string saved_by; ///< the autograd node and its member, "ReluBackward0.result_"
  bool internal = false; ///< no value shows the storage; then the node that saved it has made it
  c10::ScalarType dtype = c10::kFloat;
  int64_t elements = 0; ///< of the storage, in this dtype
  bool dense = false; ///< the slot shows every element of the storage, once
  int64_t positions_below = 0; ///< of the op that made the storage
};

/// What the positions among the call's outputs are below, each at least 0; 0 if it makes none.
int64_t positions_below(const KernelCall& call);

/// The forms that serve every slot of one storage of `bytes` bytes, smallest first. Empty: none does.
std::vector<plan::Pack> packs_for(const std::vector<SlotFacts>& slots, int64_t bytes, const CostModel& cost_model);

} // namespace recals
