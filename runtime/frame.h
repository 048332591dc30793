#pragma once

/// What one call of a program leaves behind for its backward: held inputs of replays, packed storages, generator states,
/// and what was made again while it waits for its use.
///
/// A frame is owned by the hooks on the dropped slots, so it lives exactly as long as the autograd graph needs it. It
/// holds no tensor with a graph, hence no cycle. Memory follows Note [What the executor does with fates]
/// (passes/plan/simulate.h).
///
/// Note [Rounds]
/// A backward that keeps its graph (retain_graph, double backward) may ask for the same slot again. Each pass over the
/// slots is a round: the first slot that is asked for twice begins a new one, in which every slot that still lives is
/// waited for once more.
///
/// Note [Slots that go while another thread replays]
/// Threads that walk one autograd graph take turns in its frame, for as long as a replay takes. Who lets go of a slot must
/// not wait for that: it may hold a lock that the replay needs (Python's, if an op of it or an object in it is Python's).
/// So released slots queue up, and whoever leaves the frame next settles them.

/// Note [What is held may change]
/// A replay reads parameters, buffers and inputs again, which the plain backward need not read. So it finds out whether they
/// are what they were: by the version counter, which every write in place raises, and by the storage's size, which goes to
/// zero where parameters are gathered for their use only. Small buffers are often written with what they hold already (a
/// broadcast to all replicas before each forward), so a checksum decides about them.

#include <atomic>
#include <mutex>
#include <optional>

#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "runtime/checksum.h"
#include "runtime/forward_state.h"
#include "runtime/program.h"
#include "runtime/replay_needs.h"
#include "runtime/rng_state.h"
#include "runtime/stream_state.h"

namespace recals {

class Frame : public std::enable_shared_from_this<Frame>, private ReplayNeeds::Listener {
 public:
  explicit Frame(std::shared_ptr<const Program> program);

  // Forward.
  /// Before a replayed `node` runs: what its replay needs of this moment. `inputs`: the tensors of its registers, in their
  /// order.
  void before_node(int node, const std::vector<at::Tensor>& inputs);
  /// Then, if it draws: from where.
  void before_draw(int node, const at::Generator& generator);
  /// The same in a dry run, where nothing is drawn. `device`: whose numbers, or the meta device that stands for it.
  void before_draw_on_meta(int node, c10::Device device);
  void after_draw(int node);
  /// A kept internal that a recipe reads.
  void keep_internal(int reg, const at::Tensor& tensor);
  /// Hooks for a slot that shows the dropped storage of `reg`, saved by `node`. Packs it if the plan says so.
  std::unique_ptr<torch::autograd::SavedVariableHooks> drop(int reg, const at::Tensor& slot, int node);
  /// After it has run and its slots are dropped.
  void after_node(int node, const std::vector<at::Tensor>& outputs);
  /// The forward is over. `base`: per register, the first register on the same storage.
  void seal(std::vector<int> base);

 private:
  class Hook;
  /// See Note [What is held may change].
  struct Held {
    at::Tensor tensor;
    int64_t version = -1; ///< -1: has no version counter
    size_t nbytes = 0; ///< of its storage
    std::optional<Checksum> checksum; ///< of a small buffer
    uint64_t fingerprint = 0; ///< 0: not taken (debug.h)
  };
  struct Packed {
    at::Tensor bytes;
    int64_t elements = 0;
    c10::ScalarType dtype = c10::kFloat;
  };
  /// How a register shows its storage.
  struct Geometry {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t offset = 0;
    at::TensorOptions options;

    explicit Geometry(const at::Tensor& tensor);
    at::Tensor on(const c10::Storage& storage) const;
    /// Is `tensor` laid out so, with the same dtype and on the same device?
    bool is_of(const at::Tensor& tensor) const;
  };
  /// What slots have been given. The autograd node owns it, and lets go of it by itself.
  struct InUse {
    c10::Storage lock() const;

    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
    int slots = 0; ///< that were given it and are not released
  };
  struct Slots {
    int live = 0; ///< hooks that exist
    int waiting = 0; ///< of these, not yet used in this round
    c10::Device device = c10::kCPU;
    size_t nbytes = 0; ///< of the dropped storage, to notice a replay that differs
  };
  /// One slot's question, and what lives only until it is answered.
  struct Demand {
    struct Local {
      at::Tensor tensor;
      int readers = 0; ///< nodes of the demand that have not read it yet
    };
    int reg = -1;
    int asked_by = -1; ///< the node that saved the slot
    std::unordered_map<int, Local> locals;
  };

  /// A slot that is no more.
  struct Released {
    int reg = -1;
    int round_used = -1;
    bool given = false; ///< what InUse counts
  };
  /// The frame for the scope of one thread.
  class Turn;

  // Backward, called by the hooks.
  at::Tensor demand(Hook& hook);
  void release(const Released& slot);
  void settle() noexcept;
  void settle_if_free();

  void note_geometry(int reg, const at::Tensor& tensor);
  at::Tensor storage_for(const Hook& hook);
  void replay(Demand& demand);
  std::vector<int> nodes_for(Demand& demand);
  void run_again(Demand& demand, int node);
  /// The internal that its recipe reads was saved; else the generator's state was.
  bool goes_by_recipe(int node) const {
    return program_->nodes[node].recipe != nullptr && !rng_[node];
  }
  std::vector<at::Tensor> call_again(Demand& demand, int node, std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> call_op(int node, std::vector<at::Tensor>& inputs, bool saves);
  at::Tensor input(Demand& demand, int node, int reg);
  const at::Tensor& held(int node, int reg);
  at::Tensor at_hand(const Demand& demand, int reg) const;
  void made(Demand& demand, int reg, const at::Tensor& tensor);
  void maybe_retain(const Demand& demand, int reg, const at::Tensor& tensor);
  void count_reads(Demand& demand, int node);
  at::Tensor unpack(int reg);
  void begin_round();

  void unwanted(int reg) override;
  void dead(int reg) override;
  void node_dead(int node) override;

  std::vector<int> live_slots() const;

  std::shared_ptr<const Program> program_;
  ForwardState state_;
  StreamState streams_;
  std::recursive_mutex mutex_;
  std::mutex released_mutex_;
  std::vector<Released> released_; ///< not settled yet
  std::atomic<bool> unsettled_{false}; ///< there are some
  int round_ = 0;
  std::optional<ReplayGraph> graph_; ///< once sealed
  std::optional<ReplayNeeds> needs_; ///< once sealed
  std::vector<std::optional<Held>> held_; ///< per register
  std::vector<Packed> packed_; ///< per register
  std::vector<std::optional<Geometry>> geometry_; ///< per register that a replay reads or makes and that is not held
  std::vector<at::Tensor> retained_; ///< per register
  std::vector<InUse> in_use_; ///< per register
  std::vector<Slots> slots_; ///< per register
  std::vector<std::optional<RngState>> rng_; ///< per node
  std::vector<std::vector<int>> required_grad_; ///< per node whose replay needs to know: registers
  /// How to draw again what a node with a recipe has drawn, until the recipe is known to serve.
  struct Drawn {
    c10::Device device;
    at::Generator generator; ///< undefined on meta
    at::Generator before; ///< a copy
    RngState::Place end;
  };
  std::optional<Drawn> drawn_;
};

} // namespace recals
