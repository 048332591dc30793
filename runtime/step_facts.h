#pragma once

/// What each node of a step leaves for the backward, as the dry run saw it, and the comparison with what a step on the
/// device leaves. A kernel that is another one than was planned for shows here: other autograd nodes, other slots.

#include <string>
#include <vector>

#include "recals/export.h"
#include "runtime/observer.h"
#include "runtime/program.h"

namespace recals {

/// Does the slot show what the step was given (parameters, inputs), of whatever larger storage that may be a part?
RECALS_API bool is_from_outside(const Program& program, const SavedSlot& slot);

/// A slot that an autograd node saved of what the step made.
struct SlotFact {
  std::string saved_by; ///< "GeluBackward0.self"
  int64_t bytes = 0; ///< of the storage that it shows

  auto operator<=>(const SlotFact&) const = default;
};

/// Per node of the program, its slots in the order of their names and sizes.
using StepFacts = std::vector<std::vector<SlotFact>>;

/// How many nodes there are, then one line per node with slots: its number, then name and bytes of each. What a rewritten module carries.
RECALS_API std::string lines_of(const StepFacts& facts);
/// Throws c10::Error for what `lines_of` did not write.
RECALS_API StepFacts parse_step_facts(const std::string& text);

/// Listens to a step on the device.
class RECALS_API StepCheck : public Observer {
 public:
  explicit StepCheck(const Program& program) : program_(program), met_(program.nodes.size()) {}

  void run_begins(const std::vector<at::Tensor>&) override {}
  void node_begins(int) override {}
  void node_ends(int, const std::vector<at::Tensor>&) override {}
  void slot_met(const SavedSlot& slot) override;
  std::unique_ptr<torch::autograd::SavedVariableHooks> slot_saved(const SavedSlot&) override {
    return nullptr;
  }

  const StepFacts& met() {
    return met_;
  }

 private:
  const Program& program_;
  StepFacts met_;
};

/// In words, one text per node where `met` is more than `expected`: slots that were not expected, or larger ones. Fewer are
/// no difference that matters: parameters may have been frozen since. Each names the op, its source line and both sides.
RECALS_API std::vector<std::string> differences(
    const Program& program,
    const StepFacts& expected,
    const StepFacts& met);

} // namespace recals
