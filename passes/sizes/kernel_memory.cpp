#include "passes/sizes/kernel_memory.h"

#include <algorithm>
#include <cstdlib>

#include "passes/sizes/cuda_scratch.h"
#include "passes/sizes/zeros.h"

namespace recals {

namespace {

/// A call of more than that takes seconds, and a table of one machine is not worth them: such calls go by the rules.
constexpr double kMostFlops = 2e11;
constexpr int64_t kMostBytes = int64_t{1} << 32;

/// Ops whose scratch memory depends on the numbers that they are given, not on sizes alone.
bool depends_on_numbers(const std::string& op) {
  static const std::unordered_set<std::string> ops = {
      "aten::cumprod_backward",
      "aten::linalg_matrix_exp",
      "aten::linalg_eig",
      "aten::_linalg_eigvals",
  };
  return ops.count(op) > 0;
}

/// Nothing is allocated: storage and tensor are all there is.
bool takes_nothing(const KernelCall& call) {
  if (call.op.rfind("aten::empty", 0) == 0 || call.op == "aten::set_" || call.op == "aten::resize_") {
    return true;
  }
  const auto outputs = tensors_in(call.outputs);
  const auto inputs = tensors_in(call.inputs);
  return call.op.back() != '_' && !outputs.empty() && !inputs.empty() && outputs.front().defined() &&
      inputs.front().defined() && outputs.front().has_storage() && inputs.front().has_storage() &&
      outputs.front().is_alias_of(inputs.front());
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    names.push_back(name);
  }
}

KernelMemory by_rules(const KernelCall& call, const Target& target) {
  KernelMemory memory;
  const int64_t in_kernel = target.is_cuda() ? cuda_scratch_bytes(call, target.workspace_margin)
      : target.device.is_cpu()               ? scratch_bytes(call)
                                             : 0;
  memory.scratch = copies_of_lazy_operands(call) + bytes_for_zeros(call) + in_kernel;
  memory.results = {retained_bytes(call)};
  memory.certainty = target.device.is_cpu() ? Certainty::Bounded : Certainty::Derived;
  return memory;
}

} // namespace

ScratchSource scratch_source(const std::string& name) {
  TORCH_CHECK_VALUE(
      name == "measured" || name == "rules",
      "recals: scratch memory is 'measured' on the kernels that are here or comes from 'rules', not from '",
      name,
      "'");
  return name == "measured" ? ScratchSource::Measured : ScratchSource::Rules;
}

std::optional<ScratchSource> chosen_scratch_source(std::optional<ScratchSource> chosen) {
  const char* name = std::getenv("RECALS_SCRATCH");
  return chosen || name == nullptr || *name == 0 ? chosen : scratch_source(name);
}

/// Nothing where the table has no answer; the call is then one of the unmeasured, if it can be made at all.
std::optional<KernelMemory> KernelMemories::from_table(const KernelCall& call, const Work& work, const Target& target) {
  if (work.flops > kMostFlops || work.bytes > kMostBytes) {
    add_once(facts_.scratch.bounded_ops, call.op);
    return std::nullopt;
  }
  auto spec = spec_of({call.op, call.overload}, call.inputs, call.outputs, switches_);
  if (!spec) {
    add_once(facts_.scratch.bounded_ops, call.op);
    return std::nullopt;
  }
  const auto known = call_memory::find(spec->key);
  if (!known) {
    if (missing_.insert(spec->key).second) {
      facts_.unmeasured.push_back(std::move(*spec));
    }
    return std::nullopt;
  }
  if (!known->measured) {
    add_once(facts_.scratch.bounded_ops, call.op);
    return std::nullopt;
  }
  KernelMemory memory;
  memory.peak = known->peak + bytes_for_zeros(call);
  memory.results = known->results;
  memory.certainty = Certainty::Measured;
  if (depends_on_numbers(call.op)) {
    memory.scratch = by_rules(call, target).scratch;
    memory.certainty = Certainty::Bounded;
  }
  return memory;
}

KernelMemory KernelMemories::of(const KernelCall& call, const Work& work, const Target& target) {
  if (takes_nothing(call)) {
    return {.scratch = bytes_for_zeros(call), .results = {}, .certainty = Certainty::Bounded};
  }
  auto memory = measured_ && target.device.is_cpu() ? from_table(call, work, target) : std::nullopt;
  if (!memory) {
    memory = by_rules(call, target);
  }
  if (memory->scratch > 0 || memory->peak > 0) {
    auto& scratch = facts_.scratch;
    ++(memory->certainty == Certainty::Measured      ? scratch.measured
           : memory->certainty == Certainty::Derived ? scratch.derived
                                                     : scratch.bounded);
  }
  return *memory;
}

} // namespace recals
