#pragma once

/// What the command writes. Each takes what a pipeline has left in the job and throws BadInput where that is not enough.

#include <string>

#include "passes/registry.h"
#include "tools/recals-opt/atomic_file.h"

namespace recals::opt {

/// The graph, or, where the module is the subject, the graph of each of its methods. No source locations.
std::string ir_of(const Job& job);

/// The methods of the module as TorchScript source.
std::string code_of(const Job& job);

/// docs/plan-format.md: the plan just made, else the one that the rewritten module carries.
std::string plan_json_of(const Job& job);

/// What the step holds, plain or under the plan just made.
Report report_of(const Job& job);

/// The step as a graph for Graphviz: nodes coloured by the fate of what they make, regions as boxes.
std::string dot_of(const Job& job);

/// The predicted memory over a step as Chrome trace events (chrome://tracing, Perfetto), plain and under the plan.
std::string trace_of(const Job& job);

/// Why the storage called `name` ("relu.1", "%relu.1", "%dropout.1 saved[0]") has its fate, as text. `plan`: JSON. Throws
/// BadInput that lists near names if there is none.
std::string explanation_of(const std::string& plan, const std::string& name);

/// The module as an archive; a plan also stands in its extra files, as recals_plan.json.
void write_archive(const Job& job, AtomicFile& file);

} // namespace recals::opt
