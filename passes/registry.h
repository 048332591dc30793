#pragma once

/// The passes by name, and pipelines of them. Python and recals-opt both come through here.
///
///   graph -> sizes -> plan -> boundaries -> lower      and passes of users (runtime/graph_passes.h) between them
///
/// A pass works on a Job: the module, what is asked, and what the passes before it found out.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "passes/pipeline.h"
#include "passes/plan/pareto.h"

namespace recals {

struct Job {
  torch::jit::Module module; ///< plain or rewritten; what `lower` and `restore` make takes its place
  std::string method = "forward";
  std::vector<c10::IValue> inputs; ///< arguments of `method` after self, defaults filled in
  StepOptions options;

  /// What passes on graphs change; null while the module itself is the subject (before `graph`, after `lower`). A tool
  /// may start with a graph of its own.
  std::shared_ptr<torch::jit::Graph> graph;
  std::optional<Analysis> analysis; ///< from `graph` on; its sizes are there from `sizes` on
  std::optional<Planned> planned; ///< from `plan` on

  std::string sized; ///< the graph that `sizes` saw, as text
  std::string marked; ///< the graph that `boundaries` made, as text
};

/// What has to be asked before any pass runs.
Job job_of(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options);

/// What less memory costs on a device of the job's step, under its pins; after `sizes`. `device`: its name, "" for the
/// first. Throws c10::ValueError for a pin that cannot be followed, and for a device that the step does not use.
plan::ParetoCurve pareto_of(const Job& job, const std::string& device = "");

using PassOptions = std::map<std::string, std::string>;

struct Pass {
  std::string name;
  std::string summary; ///< one line
  std::map<std::string, std::string> options; ///< name -> what it says
  std::function<bool(Job&, const PassOptions&)> run; ///< returns whether it changed the job's graph or module
  bool checked = false; ///< verified after each run, not only on request
};

/// Recals' own, in the order of the standard pipeline, then the others; then the users', in theirs.
std::vector<Pass> all_passes();

/// One place of a pipeline.
struct Step {
  std::string pass;
  PassOptions options;
};

/// A pipeline that cannot be read, or names what does not exist.
class BadPipeline : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// "graph,sizes,verify{stage=flat}": names with options in braces, one level. Throws BadPipeline.
std::vector<Step> parse_pipeline(const std::string& text);

/// The standard pipeline up to `last` (one of graph, sizes, plan, boundaries, lower), users' passes where they belong.
std::vector<Step> standard_pipeline(const std::string& last = "lower");

/// Called around each pass.
struct Instrumentation {
  std::function<void(const Step&, const Job&)> before;
  std::function<void(const Step&, const Job&, bool changed)> after;
  bool verify_each = false; ///< after every pass, not only after those that make or break a promise
};

/// Throws what the passes throw: c10::Error (with the name of the pass where its result breaks a contract),
/// BudgetUnreachable, BadBudget, BadPipeline.
void run_pipeline(Job& job, const std::vector<Step>& steps, const Instrumentation& instrumentation = {});

/// Runs the planned graph dry again if passes have changed it since it was planned. `lower` begins with it; who calls it
/// before has a `lower` that only writes types and methods. Throws BudgetUnreachable.
void measure_changes(Job& job);

} // namespace recals
