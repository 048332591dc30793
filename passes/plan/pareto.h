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

/// Plans of one device (index into `graph.devices`; the others have no limit), from the plain step down to the smallest
/// peak that is found. Peaks fall and seconds grow from point to point, at most about a per cent of the peak apart where
/// there are plans. One descent finds them all; `choose` spends more on its one budget, so its plan may be a little
/// cheaper than the curve.
std::vector<ParetoPoint> pareto(const StepGraph& graph, int device = 0);

/// { "format": 1, "device", "plain_forward_seconds", "points": [{"peak", "held", "extra_seconds"}] }
std::string to_json(const StepGraph& graph, int device, const std::vector<ParetoPoint>& points);

} // namespace recals::plan
