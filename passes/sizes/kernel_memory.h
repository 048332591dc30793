#pragma once

/// The memory that the device's kernels take and their meta kernels do not show: measured on the CPU that is here
/// (passes/measure), or by the rules of kernel_rules.h.

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "passes/measure/call_memory.h"
#include "passes/plan/step_graph.h"
#include "passes/sizes/kernel_rules.h"
#include "passes/sizes/target.h"
#include "runtime/backend_state.h"

namespace recals {

/// Where the scratch memory of the CPU's kernels comes from.
enum class ScratchSource : uint8_t {
  Measured,
  Rules,
};

/// "measured", "rules". Throws c10::ValueError for anything else.
ScratchSource scratch_source(const std::string& name);

/// `chosen`, or what the environment variable RECALS_SCRATCH says; nothing if neither does.
std::optional<ScratchSource> chosen_scratch_source(std::optional<ScratchSource> chosen);

/// How sure a number of bytes is: plan::ScratchFacts has the meanings.
enum class Certainty : uint8_t { Measured, Derived, Bounded };

struct KernelMemory {
  int64_t scratch = 0; ///< bytes that come and go within the call, by a rule
  int64_t peak = 0; ///< the most at once within the call, what outlives it included, as measured; 0: not known
  std::vector<int64_t> results; ///< sizes of the storages of what it returns, where they are known
  Certainty certainty = Certainty::Bounded;
};

/// What a dry run knew of its kernels.
struct KernelFacts {
  plan::ScratchFacts scratch;
  std::vector<CallSpec> unmeasured; ///< distinct calls that can be measured and are not yet
};

/// Asked for each call of one dry run.
class KernelMemories {
 public:
  /// `measured`: go by the table of call_memory.h where the CPU is the target.
  explicit KernelMemories(bool measured) : measured_(measured) {}

  /// `work`: what work_of says of the call.
  KernelMemory of(const KernelCall& call, const Work& work, const Target& target);
  KernelFacts finish() {
    return std::move(facts_);
  }

 private:
  std::optional<KernelMemory> from_table(const KernelCall& call, const Work& work, const Target& target);

  const bool measured_;
  const Checksum switches_ = BackendState::current().checksum(); ///< nothing changes them during a dry run
  KernelFacts facts_;
  std::unordered_set<CallKey, CallKeyHash> missing_;
};

} // namespace recals
