#pragma once

/// What a training step holds, when, and for whom: a dry run's ledger (passes/sizes/ledger.h), summed up for a person.
///
/// All numbers are bytes and are sums over the same ledger: the shares by use, module, op and dtype each add up to the
/// total, and the highest point of the curve is the peak. `pipeline.h` makes reports of an analysis and of a plan.

#include <string>
#include <vector>

#include "passes/sizes/dry_run.h"

namespace recals {

/// Why bytes are there.
enum class Use : uint8_t {
  Saved, ///< made in the forward, live when it is over: slots of autograd, what replays start from, generator states
  Output, ///< the caller holds it, nobody else
  Temporary, ///< gone before the forward, or the autograd node, that made it is over
  Workspace, ///< scratch memory of the kernel that runs
  Gradient, ///< made by an autograd node, used by a later one
  Recomputed, ///< made by a replay
  Loss, ///< made between forward and backward
};

constexpr int kUses = 7;

/// "saved", "output", ...
const char* name_of(Use use);
/// "forward", "loss", "backward", "replay"
const char* name_of(Phase phase);

/// What runs at a moment of the step.
struct Place {
  Phase phase = Phase::Forward;
  std::string op; ///< "aten::relu", the autograd node's "ReluBackward0", or "(loss)"
  std::string forward_op; ///< of an autograd node: the op whose derivative it is; empty if that is outside the module
  std::string module; ///< path, "" for the module itself, kOutside for the loss
  std::string where; ///< "model.py:12", or empty
};

constexpr const char* kOutside = "(outside the module)";

/// Bytes of one group.
struct Share {
  std::string name;
  int64_t held = 0; ///< at the end of the forward
  int64_t peak = 0; ///< at the moment of the peak
};

/// The curve, one point per moment.
struct ReportPoint {
  Place place;
  double seconds = 0; ///< estimated, from the start of the step to the end of the moment
  int64_t live = 0; ///< when the moment is over
  int64_t most = 0; ///< the most within it
};

/// One allocation of the forward that outlived its op.
struct ReportedStorage {
  std::string name; ///< as in the plan, "%relu.1" or "%dropout.1 saved[0]"
  std::string device; ///< "cpu"
  int64_t bytes = 0;
  std::string dtype; ///< "f32", or "other"
  Place made; ///< by what
  Use use = Use::Saved;
  int slots = 0; ///< autograd nodes that saved it
  bool at_peak = false; ///< live at the peak of its device
};

struct DeviceReport {
  std::string name; ///< "cpu"
  int64_t peak = 0;
  int64_t held = 0; ///< at the end of the forward
  int64_t budget = -1; ///< -1: none
  int64_t plain_peak = -1; ///< of the step without a plan; -1: this is that step
  std::string overlap; ///< what may run at the same time so that the device holds another amount; empty: nothing
  Place peak_at;
  int peak_point = 0; ///< index into `curve`
  std::vector<Share> uses; ///< one per Use, in its order
  std::vector<Share> modules; ///< largest first, as ops and dtypes
  std::vector<Share> ops;
  std::vector<Share> dtypes;
  std::vector<ReportPoint> curve;
};

struct Report {
  std::vector<DeviceReport> devices;
  std::vector<ReportedStorage> storages; ///< largest first
  double forward_seconds = 0; ///< estimated
  double backward_seconds = 0; ///< loss included
  double recompute_seconds = 0;
  plan::CostSource cost_model; ///< what the seconds come from
  plan::ScratchFacts scratch; ///< how sure the scratch memory of kernels is
};

/// `eager_bytes`: per node of the step, what the eager module holds on top (numbers that Python wraps); empty for none.
/// They count on the CPU, from the first moment to the last.
Report make_report(const DryRun& sizes, const std::vector<int64_t>& eager_bytes = {});

/// For a terminal; ends with a newline. The largest `rows` of every list.
std::string to_text(const Report& report, int rows = 10);

/// docs/reports.md has the format.
std::string to_json(const Report& report);

} // namespace recals
