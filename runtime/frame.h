#pragma once

/// What one call of a program leaves behind for its backward: held inputs of replays, generator states, and the
/// recomputed tensors while they wait for their use.
///
/// A frame is owned by the hooks on the dropped slots, so it lives exactly as long as the autograd graph needs it. It
/// holds no tensor with a graph, hence no cycle. Memory follows Note [What the executor does with fates]
/// (passes/plan/simulate.h).
///
/// Note [Rounds]
/// A backward that keeps its graph (retain_graph, double backward) may ask for the same slot again. Each pass over the
/// slots of a component is a round: the first slot that is asked for twice begins a new one, in which every slot that
/// still lives is waited for once more.

#include <mutex>
#include <optional>

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "runtime/autocast_state.h"
#include "runtime/program.h"
#include "runtime/rng_state.h"

namespace recals {

class Frame : public std::enable_shared_from_this<Frame> {
 public:
  explicit Frame(std::shared_ptr<const Program> program);

  // Forward.
  /// Before `node` runs: what its replay needs of this moment. `inputs`: the tensors of its registers, in their order.
  void before_node(int node, const std::vector<at::Tensor>& inputs);
  /// Hooks for a slot that shows the dropped storage of `reg`.
  std::unique_ptr<torch::autograd::SavedVariableHooks> drop(int reg, const at::Tensor& slot);
  /// The forward is over: components without slots let go of what they hold.
  void seal();

 private:
  class Hook;
  struct Held {
    at::Tensor tensor;
    int64_t version = -1; ///< -1: has no version counter
    bool required_grad = false;
  };
  struct Cached {
    at::Tensor tensor;
    int remaining = 0; ///< replayed nodes that have not yet read it + slots that wait for it
  };
  struct Slots {
    int live = 0; ///< hooks that exist
    int waiting = 0; ///< of these, not yet used in this round
    c10::Device device = c10::kCPU;
    size_t nbytes = 0; ///< of the dropped storage, to notice a replay that differs
  };

  // Backward, called by the hooks.
  at::Tensor demand(Hook& hook);
  void release(Hook& hook);

  void replay(int reg);
  std::vector<int> nodes_for(int reg) const;
  void run_again(int node);
  const at::Tensor& input(int node, int reg) const;
  void cache(int reg, const at::Tensor& tensor);
  void count_down(int reg);
  void begin_round(int component);
  void let_go(int component);

  std::shared_ptr<const Program> program_;
  AutocastState autocast_;
  std::recursive_mutex mutex_;
  bool sealed_ = false;
  std::vector<std::optional<Held>> held_; ///< per register
  std::vector<int> holders_; ///< per register: components that have not let go
  std::vector<Cached> cached_; ///< per register
  std::vector<Slots> slots_; ///< per register
  std::vector<std::optional<RngState>> rng_; ///< per node
  std::vector<std::vector<int>> required_grad_; ///< per node with dropped internals: registers
  std::vector<int> live_slots_; ///< per component
  std::vector<int> round_; ///< per component
};

} // namespace recals
