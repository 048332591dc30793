#pragma once

/// A straight-line TorchScript graph made ready to run op by op.
///
/// `compile` flattens the nested `recals::checkpoint` calls of a lowered module (or takes the flat graph of
/// `passes/graph` as it is), reads the `recals::` marks, and works out what a replay will need. The result is immutable
/// and shared by all calls.
///
/// Registers hold tensors. By its mark a register is *recomputed* or *packed* (the plan drops its storage and makes it
/// again), or *kept* (a replay that reads it holds it; so it does with what comes from outside: input, parameter,
/// buffer). Without a mark, a replay that reads it runs its producer again. Internal slots with a mark (a dropout's mask,
/// statistics) have registers of their own after those of the graph.

#include <atomic>
#include <climits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "recals/export.h"
#include "runtime/device_table.h"
#include "runtime/packing.h"
#include "runtime/recipes.h"

namespace recals {

/// One argument of an op: a constant, a register, or a list of those (registers in `list`, -1 for None).
struct Argument {
  c10::IValue constant;
  int reg = -1;
  std::vector<int> list;
  c10::TypePtr list_type; ///< element type; null: no list
};

/// A register of an internal with a mark: the `number`-th storage that the node's autograd nodes saved and that no input
/// or output shows.
struct Internal {
  int number = 0;
  int reg = 0;
};

struct ProgramNode {
  const torch::jit::Node* source = nullptr; ///< null for SetAttr
  mutable std::optional<torch::jit::Operation> op; ///< mutable: LibTorch has no const call
  std::string name; ///< "aten::relu"
  std::vector<Argument> arguments;
  std::vector<int> inputs; ///< registers read, each once
  std::vector<int> outputs; ///< registers written, one per tensor
  bool returns_list = false; ///< the op returns one Tensor[] that is unpacked into `outputs`
  std::vector<std::string> set_attribute; ///< not empty: writes inputs[0] to this path of the module instead
  std::vector<int> dead; ///< registers that nobody reads after this node
  bool random = false; ///< draws from a generator
  int generator_argument = -1; ///< of the op, if it takes a generator
  std::vector<std::string> generator_path; ///< not empty: that argument is this attribute of the module
  bool asks_for_grad = false; ///< its kernel may depend on grad mode, and on which inputs require grad
  bool replayed = false; ///< of N; Note [What the executor does with fates] in passes/plan/simulate.h
  std::vector<Internal> internals;
  const Recipe* recipe = nullptr; ///< how its replays run, unless as the op itself
  int recipe_reg = -1; ///< the internal that the recipe reads
  std::vector<size_t> blanked_in_replay; ///< arguments passed as None when replayed: state that is written only once
};

struct Register {
  static constexpr int kAlways = INT_MAX;

  std::string name; ///< "x.3", for messages
  const torch::jit::Value* value = nullptr; ///< null for attributes and internals
  int producer = -1; ///< -1: input or attribute
  bool attribute = false;
  bool kept = false;
  bool recomputed = false;
  const Packer* packer = nullptr; ///< not null: packed
  int retained_from = kAlways; ///< a replay retains it if a slot of this node, or of one before it, asks

  /// Slots that show its storage are dropped.
  bool dropped() const {
    return recomputed || packer != nullptr;
  }
};

struct Attribute {
  std::vector<std::string> path;
  int reg = -1;
};

struct CompileOptions {
  /// To run on meta tensors: devices in constants become their stand-ins, factories without a device make what stands for
  /// the CPU. Null: to run on the devices themselves.
  const DeviceTable* meta = nullptr;
  /// For meta: what runs in place of an op that takes another way on meta tensors than on the device
  /// (passes/sizes/device_rules.h). Null: every op itself.
  torch::jit::Operation (*on_meta)(const torch::jit::Node& node, const DeviceTable& devices) = nullptr;
};

class RECALS_API Program {
 public:
  /// `graph`: inputs (self, Tensor...), straight-line; the class of `self` holds the methods that
  /// `recals::checkpoint` names. Throws c10::Error naming the node and its source line if the graph is not of that form.
  static std::shared_ptr<const Program> compile(
      const std::shared_ptr<torch::jit::Graph>& graph,
      CompileOptions options = {});

  std::vector<std::shared_ptr<torch::jit::Graph>> graphs; ///< kept alive for `ProgramNode::source`
  std::vector<ProgramNode> nodes;
  std::vector<Register> registers;
  std::vector<int> inputs;
  std::vector<Attribute> attributes;
  std::vector<int> outputs;
  bool drops = false; ///< some register is dropped
  mutable std::atomic<bool> compared{false}; ///< its first training step was, or is being (step_check.h)
  bool meta = false; ///< it runs on meta
  DeviceTable devices; ///< of the step, if it runs on meta

  /// Does a replay that reads `reg` run its producer again? Otherwise it holds the tensor of the forward, or unpacks it.
  bool runs_again(int reg) const {
    const auto& r = registers[reg];
    return r.producer >= 0 && !r.kept && !(r.packer != nullptr && r.packer->lossless);
  }
  /// Does it hold the tensor of the forward?
  bool is_held(int reg) const {
    return registers[reg].producer < 0 || registers[reg].kept;
  }
};

/// "model.py:12", or "" without source.
RECALS_API std::string where(const torch::jit::Node* node);

} // namespace recals
