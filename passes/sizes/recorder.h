#pragma once

/// Listens to a dry run: allocations, the executor's nodes, saved slots, kernels, autograd nodes.

#include <exception>
#include <memory>
#include <unordered_map>

#include <ATen/record_function.h>

#include "passes/meta/meta_allocator.h"
#include "passes/sizes/backward_order.h"
#include "passes/sizes/cost_model.h"
#include "passes/sizes/dry_run.h"
#include "passes/sizes/kernel_memory.h"
#include "passes/sizes/ledger.h"
#include "passes/sizes/pack_rules.h"
#include "passes/sizes/target.h"
#include "runtime/cpu_memory.h"
#include "runtime/observer.h"

namespace recals {

class Recorder : public Observer, public MetaAllocationListener {
 public:
  /// `measured`: as KernelMemories has it.
  Recorder(const Program& program, const std::vector<Target>& targets, bool measured);
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// After the executor has returned: what follows is loss and backward.
  void forward_ends(const std::vector<at::Tensor>& outputs);
  /// Throws what the first callback threw that did.
  DryRun finish();

  void run_begins(const std::vector<at::Tensor>& registers) override;
  void node_begins(int node) override;
  void node_ends(int node, const std::vector<at::Tensor>& outputs) override;
  void slot_met(const SavedSlot& slot) override;
  std::unique_ptr<torch::autograd::SavedVariableHooks> slot_saved(const SavedSlot& slot) override;

  void allocated(const MetaBlock& block) override;
  void freed(const MetaBlock& block) override;

  // From the hooks and callbacks.
  void slot_event(plan::BackwardEvent::Kind kind, int slot);
  void kernel_begins();
  void kernel_ends();
  void kernel_ran(const KernelCall& call);
  /// `sequence`: the number that the autograd node got when the forward made it.
  void backward_op_begins(const std::string& name, int64_t sequence);
  void backward_op_ends();
  /// Between two autograd nodes of the backward.
  bool engine_works() const {
    return after_forward_ && labels_.empty();
  }
  /// The name of the autograd node whose backward runs; empty in the forward.
  std::string backward_op() const;
  /// The autograd node that an exception came out of, and the op of the step whose derivative it is: "IndexBackward0, the
  /// derivative of aten::index at model.py:12". Empty if none did.
  const std::string& failed_backward_op() const {
    return failed_backward_op_;
  }
  void replay_begins(int node);
  void replay_ends();
  /// A callback threw `error`, and torch goes on as if it had not.
  void failed(std::exception_ptr error);

 private:
  struct Block {
    int device = 0;
    int64_t bytes = 0;
    int storage = -1;
    bool of_forward = false;
  };

  void counted(const MetaBlock& block);
  /// Returns by how many bytes.
  int64_t grown(const c10::Storage& storage, int64_t requested);
  int storage_of(int64_t block);
  void at_peak(int device, int64_t bytes);
  void change(int device, int64_t bytes);
  int device_of(const KernelCall& call) const;
  void find_writes();
  void find_packs();
  void find_recipes();
  int node_of(int64_t sequence) const;

  const Program& program_;
  const std::vector<Target> targets_; ///< per device of the step
  KernelMemories kernel_memories_;
  DryRun result_;
  std::unordered_map<int64_t, Block> blocks_;
  std::vector<int64_t> register_block_; ///< -1: not allocated in this run
  std::vector<const void*> register_external_; ///< the storage of a register that was not
  bool in_kernel_ = false;
  std::vector<MetaBlock> kernel_blocks_; ///< allocated by the kernel that runs
  int64_t kernel_kept_ = 0; ///< bytes that the kernel that ran last has allocated and not freed
  std::vector<int64_t> node_blocks_; ///< allocated by the node that runs
  std::vector<int64_t> node_positions_; ///< per node: positions_below of its kernels
  std::vector<SlotFacts> slot_facts_; ///< per slot of the step
  std::unordered_map<int, int> written_; ///< storages that nodes write in place: the last one that does
  std::vector<int64_t> live_; ///< per device
  std::vector<int64_t> node_start_;
  std::vector<int64_t> node_peak_;
  int node_ = -1;
  bool after_forward_ = false;
  std::vector<int> labels_;
  std::string failed_backward_op_;
  BackwardOrder order_;
  std::vector<uint64_t> sequences_; ///< per forward node: of the first autograd node that it makes
  std::vector<int> backward_nodes_; ///< of the autograd nodes that wait for a replay
  LedgerWriter ledger_;
  std::exception_ptr error_; ///< the first that a callback threw
  std::unique_ptr<CpuMemoryListener> host_;
  at::CallbackHandle kernels_ = 0;
  at::CallbackHandle backward_ops_ = 0;
};

} // namespace recals
