#pragma once

/// Every byte that a dry run hands out and takes back, in order, and what it was for.
///
/// The peak of a step, what is live at it, and the curve over time are all sums over one ledger, so they cannot
/// disagree. A ledger knows no StepGraph rules: it is what was observed.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <c10/core/ScalarType.h>

namespace recals {

enum class Phase : uint8_t {
  Forward,
  Loss, ///< what the caller does with the outputs
  Backward,
  Replay, ///< a node that runs again, inside the backward
};

/// A stretch of the step in which one thing runs. What is freed before the next one begins still belongs to it.
struct Moment {
  Phase phase = Phase::Forward;
  /// Forward, Replay: the node that runs. Backward: the node whose autograd node runs. -1: none of the module's.
  int node = -1;
  int backward_op = -1; ///< index into StepGraph::backward_ops; -1 before the backward
  double seconds = 0; ///< estimated
};

struct Allocation {
  int moment = 0; ///< index into Ledger::moments: when it was made
  int device = 0; ///< index into StepGraph::devices
  int64_t bytes = 0; ///< what it had grown to when it was freed
  int storage = -1; ///< index into StepGraph::storages; -1: temporaries, gradients, ...
  c10::ScalarType dtype = c10::ScalarType::Undefined; ///< Undefined: no op returned it as a tensor
};

struct LedgerEvent {
  int moment = 0;
  int allocation = -1; ///< -1: a kernel's scratch memory, which is there for this event only
  int device = 0;
  int64_t bytes = 0; ///< positive: handed out; negative: taken back
};

struct Ledger {
  std::vector<Moment> moments;
  std::vector<Allocation> allocations;
  std::vector<LedgerEvent> events;
  size_t forward_events = 0; ///< events[0, forward_events) happened before the outputs were returned
};

/// Keeps a ledger while the allocator's blocks (by id) come and go.
class LedgerWriter {
 public:
  void begin(Phase phase, int node, int backward_op);
  /// Of the kernels of the moment that is.
  void add_seconds(double seconds);
  void allocated(int64_t block, int device, int64_t bytes);
  void grown(int64_t block, int64_t extra);
  void freed(int64_t block);
  void scratch(int device, int64_t bytes);
  void is_storage(int64_t block, int storage);
  void is_dtype(int64_t block, c10::ScalarType dtype);
  void forward_ends();
  const Moment& now() const {
    return ledger_.moments.back();
  }
  Ledger finish();

 private:
  Ledger ledger_;
  std::unordered_map<int64_t, int> allocations_; ///< by block, while it lives
};

} // namespace recals
