#include "tools/recals-opt/options.h"

#include <iostream>

#include <torch/version.h>
#include <CLI/CLI.hpp>

#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

constexpr const char* kAbout =
    "Rewrites a TorchScript module so that its training step stays within a memory budget, and shows each stage on the "
    "way. Needs no Python.";

constexpr const char* kMore =
    "SPEC is a value as recals prints it: f32[8,3,224,224], i64[8]@cpu, f32[4]+grad, 3, 0.5, True, None, \"text\", "
    "(tuple), [list], {\"key\": value}.\n"
    "Exit status: 0 done, 1 bad input, 2 usage, 3 the budget cannot be met.\n";

/// An option that may be given several times, one value each.
void add_list(CLI::App& app, const char* name, std::vector<std::string>& values, const char* type, const char* help) {
  app.add_option(name, values, help)->type_name(type)->allow_extra_args(false);
}

void describe(CLI::App& app, Options& options) {
  app.get_formatter()->column_width(34);
  app.footer(kMore);
  app.set_version_flag("--version", std::string("recals-opt " RECALS_VERSION ", torch " TORCH_VERSION));
  app.add_option("file", options.file, "TorchScript archive, TorchScript source, or a graph as text; - is stdin")
      ->type_name("FILE");

  add_list(app, "--input", options.inputs, "[NAME=]SPEC", "An argument of the method, as in a training step");
  app.add_option("--method", options.method, "The method that is called in training")
      ->type_name("NAME")
      ->capture_default_str();
  add_list(
      app,
      "--budget",
      options.budgets,
      "[DEVICE=]LIMIT",
      "512MiB, 536870912, 50% of the plain peak, min (the smallest that works), or auto (what the device has free); of "
      "every accelerator, or of one device");
  app.add_option(
         "--pins", options.pins, "What must or should be kept or recomputed, as JSON: {\"layer1.*\": \"must_save\"}")
      ->type_name("FILE");
  app.add_option("--autocast", options.autocast, "The step's forward runs under autocast of this dtype")
      ->type_name("DTYPE")
      ->check(CLI::IsMember({"bf16", "f16"}));
  app.add_option(
         "--cost-model", options.cost_model, "Where the times of ops come from: built-in, calibrated, or a file")
      ->type_name("MODEL");
  app.add_option(
         "--target-device",
         options.target_device,
         "The device to plan for, where that is not where the file's tensors are")
      ->type_name("DEVICE");
  app.add_option(
         "--workspace-margin", options.workspace_margin, "Bytes that cuBLAS and cuDNN may take within a call (CUDA)")
      ->type_name("BYTES");
  app.add_option(
         "--scratch",
         options.scratch,
         "Scratch memory of the CPU's kernels: measured (each distinct call is made once; the default where tensors "
         "are "
         "here) or by rules")
      ->type_name("SOURCE")
      ->check(CLI::IsMember({"measured", "rules"}));
  app.add_flag(
      "--no-preserve-rng-state",
      options.no_preserve_rng_state,
      "Keep what draws random numbers: no generator state is stored and set to draw again");
  app.add_option(
         "--gpu-devices", options.gpu_devices, "The devices where this may be done: all, none, or indices such as 0,1")
      ->type_name("DEVICES")
      ->capture_default_str();
  app.add_option(
         "--on-mismatch",
         options.on_mismatch,
         "What a training step does that the plan cannot hold within the budget: warn, error, or plain (nothing)")
      ->type_name("WHAT")
      ->check(CLI::IsMember({"warn", "error", "plain"}))
      ->capture_default_str();
  add_list(app, "--parameter", options.parameters, "NAME=SPEC", "A parameter of self, for source and text graphs");
  add_list(app, "--buffer", options.buffers, "NAME=SPEC", "A buffer of self, for source and text graphs");
  add_list(app, "--load-library", options.libraries, "FILE", "A library with ops or passes to load first");

  app.add_option("-o,--output", options.output, "Written whole or not at all; stdout without it")->type_name("FILE");
  app.add_option("--emit", options.emit, "What to write; without it pt for -o NAME.pt, else ir")
      ->type_name("KIND")
      ->check(CLI::IsMember(
          {"ir", "code", "pt", "plan", "report", "report-json", "pareto", "pareto-json", "dot", "trace"}));

  app.add_option("--passes", options.passes, "The pipeline instead of the standard one: a,b{option=1}")
      ->type_name("PASSES");
  app.add_flag("--list-passes", options.list_passes, "Print the names of the passes");
  add_list(app, "--print-ir-before", options.print_before, "PASS", "Print to stderr before this pass, or before all");
  add_list(app, "--print-ir-after", options.print_after, "PASS", "Print to stderr after this pass, or after all");
  app.add_flag("--print-ir-after-change", options.print_after_change, "Print after each pass that changed something");
  app.add_flag("--verify-each", options.verify_each, "Check the contract after every pass");
  app.add_flag("--split-input-file", options.split, "Take text apart at lines '# -----'; each part for itself");

  app.add_flag("--check", options.check, "Does the file, as it is, train within the budget?");
  app.add_flag(
      "--verify", options.verify, "Run one step on made-up numbers: does it hold what was predicted, node by node?");
  app.add_flag("--restore", options.restore, "The plain module of a rewritten one");
  app.add_option("--explain", options.explain, "Why this value is kept or recomputed")->type_name("VALUE");
}

/// Each of these says what the command is to do, so only one can be asked for.
void check_modes(const Options& options) {
  const std::pair<const char*, bool> modes[] = {
      {"--check", options.check},
      {"--verify", options.verify},
      {"--restore", options.restore},
      {"--explain", !options.explain.empty()},
      {"--passes", !options.passes.empty()}};
  const char* first = nullptr;
  for (const auto& [name, given] : modes) {
    if (given && first != nullptr) {
      throw UsageError(std::string(first) + " and " + name + " exclude each other");
    }
    first = given ? name : first;
  }
  if (!options.emit.empty() && (options.check || options.verify || !options.explain.empty())) {
    throw UsageError(std::string(first) + " prints text of its own, so it excludes --emit");
  }
  const bool curve = options.emit == "pareto" || options.emit == "pareto-json";
  if (!options.pins.empty() && options.budgets.empty() && !curve) {
    throw UsageError("--pins says what a plan must do, so it needs a --budget, or --emit=pareto");
  }
  if (options.file.empty() && !options.list_passes) {
    throw UsageError("a FILE is expected");
  }
}

} // namespace

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kAbout, "recals-opt");
  describe(app, options);
  try {
    app.parse(argc, const_cast<char**>(argv)); // CLI11 takes no const, and changes nothing
    check_modes(options);
  } catch (const CLI::Success& done) {
    return {std::nullopt, app.exit(done, std::cout, std::cerr)};
  } catch (const std::exception& error) { // CLI::ParseError, UsageError
    std::cerr << "recals-opt: " << one_line(error.what()) << " (see recals-opt --help)\n";
    return {std::nullopt, kUsage};
  }
  return {std::move(options), kDone};
}

} // namespace recals::opt
