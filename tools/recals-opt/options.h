#pragma once

/// The command line.

#include <optional>
#include <string>
#include <vector>

namespace recals::opt {

struct Options {
  std::string file; ///< "-": stdin
  std::string output; ///< empty or "-": stdout
  std::string emit; ///< empty: by the ending of `output`
  std::string method = "forward";
  std::string passes;
  std::string cost_model;
  std::string autocast; ///< dtype; empty: the step runs without
  std::string target_device; ///< empty: where the file's tensors are
  std::optional<int64_t> workspace_margin; ///< bytes
  std::string scratch; ///< "measured", "rules"; empty: by where the tensors are
  bool no_preserve_rng_state = false;
  std::string gpu_devices = "all";
  std::string on_mismatch = "warn";
  std::string explain;
  std::string pins; ///< a file; empty: none
  std::vector<std::string> inputs; ///< [NAME=]SPEC
  std::vector<std::string> parameters; ///< NAME=SPEC
  std::vector<std::string> buffers; ///< NAME=SPEC
  std::vector<std::string> budgets; ///< [DEVICE=]LIMIT
  std::vector<std::string> libraries;
  std::vector<std::string> print_before;
  std::vector<std::string> print_after;
  bool print_after_change = false;
  bool verify_each = false;
  bool check = false;
  bool verify = false;
  bool restore = false;
  bool list_passes = false;
  bool split = false;
};

/// What was read, or the exit code where nothing is left to do (--help, --version, a usage error: already printed).
struct Parsed {
  std::optional<Options> options;
  int exit_code = 0;
};

Parsed parse_options(int argc, const char* const* argv);

} // namespace recals::opt
