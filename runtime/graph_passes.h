#pragma once

/// Passes that users add to the pipeline.
///
/// The table is in this library because every process that compiles or trains has it exactly once: the Python package,
/// recals-opt, and what either of them loads.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/jit/ir/ir.h>

#include "recals/export.h"

namespace recals {

struct GraphPass {
  std::string name; ///< letters, digits, '-' and '_'
  std::string summary; ///< one line, for lists
  /// The pass after which it runs: "graph", "sizes", "plan", "boundaries", or another added pass. Between sizes and
  /// boundaries the graph may be read, but not changed.
  std::string after = "graph";
  /// Changes the graph in place.
  std::function<void(const std::shared_ptr<torch::jit::Graph>&)> run;
};

/// Throws std::invalid_argument if the name is taken or none, or `after` is no pass that it can follow.
RECALS_API void register_graph_pass(GraphPass pass);

/// Throws std::invalid_argument if there is none of that name, or another one stands after it.
RECALS_API void unregister_graph_pass(const std::string& name);

/// In the order in which they were added.
RECALS_API std::vector<GraphPass> graph_passes();

/// `static RegisterGraphPass registered({"my-pass", "what it does", "graph", my_pass});` in a library for --load-library.
struct RegisterGraphPass {
  explicit RegisterGraphPass(GraphPass pass) {
    register_graph_pass(std::move(pass));
  }
};

} // namespace recals
