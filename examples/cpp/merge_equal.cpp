// A pass of one's own: equal ops on equal values are computed once. In a pipeline under the name "merge-equal":
//
//   recals-opt --load-library=libmerge_equal.so model.pt --input=... --budget=50% -o out.pt
//
// It stands behind "graph", so sizes and plan are made from what it leaves. (It may move a gradient by a rounding, as
// any change of the order of sums.)

#include <torch/csrc/jit/passes/common_subexpression_elimination.h>

#include "runtime/graph_passes.h"

static const recals::RegisterGraphPass registered({
    .name = "merge-equal",
    .summary = "computes equal values once",
    .after = "graph",
    .run = [](const std::shared_ptr<torch::jit::Graph>& graph) { torch::jit::EliminateCommonSubexpression(graph); },
});
