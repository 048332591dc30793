#pragma once

/// What less memory costs, over the whole range.

#include <cstdint>
#include <string>
#include <vector>

#include "passes/plan/simulate.h"

namespace recals::plan {

struct ParetoPoint {
  int64_t peak = 0; ///< bytes on the device
  int64_t held = 0; ///< bytes on the device at the end of the forward
  double extra_seconds = 0; ///< recomputing, packing and unpacking
  std::vector<Choice> choices;
};

/// Plans for one device, and what they are measured by.
struct ParetoCurve {
  std::string device;
  int64_t plain_peak = 0; ///< bytes on the device
  double plain_seconds = 0; ///< forward, loss and backward, estimated
  CostSource cost_model{};
  std::vector<Pin> pins{};
  std::vector<ParetoPoint> points{};
};

/// Plans of one device (index into `graph.devices`; the others have no limit), from the plain step (as far as policies
/// allow it) down to the smallest peak that is found. Peaks fall and seconds grow from point to point, at most about a per
/// cent of the peak apart where there are plans. One descent finds them all; `choose` spends more on its one budget, so its
/// plan may be a little cheaper than the curve.
ParetoCurve pareto(const StepGraph& graph, int device = 0);

/// A table for a person: at most `rows` of the points, evenly spread over the peaks, the first and the last among them.
std::string to_text(const ParetoCurve& curve, int rows = 20);

/// { "format": 1, "device", "plain_peak", "plain_seconds", "cost_model": {"name", "hash" (or null)}, "pins": {pattern:
///   policy}, "points": [{"peak", "held", "extra_seconds", "fraction" (of the plain peak)}] }
std::string to_json(const ParetoCurve& curve);

} // namespace recals::plan
