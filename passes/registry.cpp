#include "passes/registry.h"

#include <algorithm>

#include <torch/csrc/jit/passes/common_subexpression_elimination.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>

#include "passes/boundaries/boundaries.h"
#include "passes/lower/lower.h"
#include "passes/plan/pins.h"
#include "passes/plan/plan_json.h"
#include "passes/verify/verify.h"
#include "runtime/graph_passes.h"

namespace recals {

using torch::jit::Graph;

namespace {

std::string text_of(const std::shared_ptr<Graph>& graph) {
  return graph == nullptr ? "" : graph->toString(/*print_source_locations=*/false);
}

void need(bool there, const char* pass, const char* before) {
  TORCH_CHECK(there, "recals: the pass '", pass, "' needs what '", before, "' makes; put '", before, "' before it");
}

/// The sizes of the graph are those of the nodes that `sizes` saw, by their numbers.
void need_sized_graph(const Job& job, const char* pass) {
  need(!job.sized.empty(), pass, "sizes");
  TORCH_CHECK(
      text_of(job.graph) == job.sized,
      "recals: the graph was changed after 'sizes', so '",
      pass,
      "' cannot tell what the step holds; run the pass that changes it before 'sizes', or after 'boundaries'");
}

void follow_pins(plan::StepGraph& step, const StepOptions& options) {
  const auto bad = plan::set_policies(step, options.pins);
  TORCH_CHECK_VALUE(!bad, "recals: ", bad->message);
}

// --- Recals' own -------------------------------------------------------------------------------------------------------

bool run_graph(Job& job, const PassOptions&) {
  // One method of a module has a plan: a rewritten module is planned anew from its plain form.
  if (is_lowered(job.module)) {
    job.module = restore(job.module);
  }
  job.analysis = specialise_step(job.module, job.method, job.inputs, job.options);
  job.graph = job.analysis->flat.graph;
  job.planned.reset();
  job.sized.clear();
  job.marked.clear();
  return true;
}

bool run_sizes(Job& job, const PassOptions&) {
  need(job.analysis.has_value() && job.graph != nullptr, "sizes", "graph");
  job.analysis->flat.graph = job.graph;
  size_step(*job.analysis, job.module, job.inputs, job.options);
  job.sized = text_of(job.graph);
  return false;
}

bool run_plan(Job& job, const PassOptions&) {
  need_sized_graph(job, "plan");
  follow_pins(job.analysis->sizes.step, job.options);
  job.planned = plan_step(*job.analysis, job.options);
  return false;
}

bool run_boundaries(Job& job, const PassOptions&) {
  need(job.planned.has_value(), "boundaries", "plan");
  need_sized_graph(job, "boundaries");
  job.graph = job.planned->graph;
  job.marked = text_of(job.graph);
  return !job.planned->plan.regions.empty();
}

bool run_remove_boundaries(Job& job, const PassOptions&) {
  need(job.graph != nullptr, "remove-boundaries", "graph");
  return remove_boundaries(*job.graph);
}

bool run_lower(Job& job, const PassOptions&) {
  measure_changes(job);
  auto flat = job.analysis->flat;
  flat.graph = job.graph;
  job.module = lower(
      job.module,
      job.method,
      flat,
      json_of(*job.analysis, *job.planned),
      lines_of(job.planned->sizes.facts),
      job.options.on_mismatch);
  job.graph = nullptr;
  return true;
}

bool run_restore(Job& job, const PassOptions&) {
  job.module = restore(job.module);
  job.graph = nullptr;
  return true;
}

// --- verification ------------------------------------------------------------------------------------------------------

void verify_stage(const Job& job, const std::string& stage) {
  if (stage == "lowered") {
    verify_lowered(job.module, job.method);
  } else if (stage == "flat") {
    need(job.graph != nullptr, "verify", "graph");
    verify_flat(*job.graph);
  } else {
    need(job.graph != nullptr, "verify", "graph");
    verify_boundaries(*job.graph);
  }
}

/// The contract of what the job is now.
void verify(const Job& job) {
  if (job.graph != nullptr) {
    verify_boundaries(*job.graph); // a flat graph is one without boundaries
  } else if (is_lowered(job.module)) {
    verify_lowered(job.module, job.method);
  }
}

bool run_verify(Job& job, const PassOptions& options) {
  const auto stage = options.find("stage");
  if (stage == options.end()) {
    verify(job);
    return false;
  }
  if (stage->second != "flat" && stage->second != "boundaries" && stage->second != "lowered") {
    throw BadPipeline("recals: verify{stage=" + stage->second + "}: a stage is flat, boundaries or lowered");
  }
  verify_stage(job, stage->second);
  return false;
}

// --- torch's -----------------------------------------------------------------------------------------------------------

Pass torch_pass(const char* name, const char* summary, void (*run)(const std::shared_ptr<Graph>&)) {
  return {name, summary, {}, [name, run](Job& job, const PassOptions&) {
            need(job.graph != nullptr, name, "graph");
            const auto before = text_of(job.graph);
            run(job.graph);
            return text_of(job.graph) != before;
          }};
}

const std::vector<Pass>& own_passes() {
  static const auto& passes = *new std::vector<Pass>{
      {"graph", "one straight-line graph of the method for the inputs", {}, run_graph, /*checked=*/true},
      {"sizes", "runs the step on meta tensors: what it holds, and when", {}, run_sizes},
      {"plan", "chooses what is kept and what is recomputed, within the budgets", {}, run_plan},
      {"boundaries", "writes the plan into the graph as recals:: ops", {}, run_boundaries, /*checked=*/true},
      {"lower", "makes the module that trains under the plan", {}, run_lower, /*checked=*/true},
      {"remove-boundaries", "takes every recals:: op out of the graph", {}, run_remove_boundaries, /*checked=*/true},
      {"restore", "the plain module of a rewritten one", {}, run_restore},
      {"verify",
       "checks the contract of what is there",
       {{"stage", "flat, boundaries or lowered: the contract to check"}},
       run_verify},
      torch_pass(
          "torch-cse",
          "torch's common subexpression elimination",
          [](const std::shared_ptr<Graph>& graph) { torch::jit::EliminateCommonSubexpression(graph); }),
      torch_pass(
          "torch-dce",
          "torch's dead code elimination",
          [](const std::shared_ptr<Graph>& graph) { torch::jit::EliminateDeadCode(graph); }),
      torch_pass(
          "torch-constant-propagation",
          "torch's constant propagation",
          [](const std::shared_ptr<Graph>& graph) {
            auto shared = graph;
            torch::jit::ConstantPropagation(shared);
          }),
      torch_pass(
          "torch-inline",
          "torch's inlining of calls",
          [](const std::shared_ptr<Graph>& graph) { torch::jit::Inline(*graph); }),
  };
  return passes;
}

// --- users' ------------------------------------------------------------------------------------------------------------

Pass pass_of(const GraphPass& user) {
  auto run = [user](Job& job, const PassOptions&) {
    need(job.graph != nullptr, user.name.c_str(), "graph");
    const auto before = text_of(job.graph);
    const auto inputs = job.graph->inputs().size();
    const auto outputs = job.graph->outputs().size();
    user.run(job.graph);
    TORCH_CHECK(
        job.graph->inputs().size() == inputs && job.graph->outputs().size() == outputs,
        "recals: the pass '",
        user.name,
        "' changed the inputs or outputs of the graph, which are those of the method");
    job.graph->lint();
    return text_of(job.graph) != before;
  };
  return {user.name, user.summary, {}, run, /*checked=*/true};
}

} // namespace

Job job_of(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  Job job;
  job.module = module;
  job.method = method;
  job.inputs = inputs;
  job.options = options;
  return job;
}

void measure_changes(Job& job) {
  need(!job.marked.empty(), "lower", "boundaries");
  auto text = text_of(job.graph);
  if (text != job.marked) {
    job.planned->graph = job.graph;
    measure_again(*job.analysis, *job.planned);
    job.marked = std::move(text);
  }
}

plan::ParetoCurve pareto_of(const Job& job, const std::string& device) {
  need_sized_graph(job, "plan");
  auto step = job.analysis->sizes.step;
  follow_pins(step, job.options);
  const auto found = std::find(step.devices.begin(), step.devices.end(), device);
  TORCH_CHECK_VALUE(
      device.empty() || found != step.devices.end(),
      "recals: the step does not run on '",
      device,
      "', but on ",
      c10::Join(", ", step.devices));
  const auto d = device.empty() ? 0 : static_cast<int>(found - step.devices.begin());
  auto curve = plan::pareto(step, d);
  // The last one is the plan that "min" stands for: it has the bytes that were seen in its dry run. What is above it by
  // the simulator alone does not count.
  auto last = std::move(curve.points.back());
  curve.points.pop_back();
  last.peak = peak_run_dry(*job.analysis, last.choices)[d];
  std::erase_if(curve.points, [&](const auto& point) { return point.peak <= last.peak; });
  curve.points.push_back(std::move(last));
  if (const auto& plain = job.analysis->in_place; plain && !plan::has_policies(step)) {
    // The plain step takes less than its ops would out of place.
    curve.plain_peak = plain->sizes.peak[d];
    std::erase_if(curve.points, [&](const auto& point) { return point.peak >= curve.plain_peak; });
    curve.points.insert(
        curve.points.begin(),
        {plain->sizes.peak[d], plain->sizes.held[d], 0, std::vector<plan::Choice>(step.storages.size())});
  }
  return curve;
}

std::vector<Pass> all_passes() {
  auto passes = own_passes();
  for (const auto& user : graph_passes()) {
    passes.push_back(pass_of(user));
  }
  return passes;
}

namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

Pass find_pass(const std::vector<Pass>& passes, const std::string& name) {
  const auto found = std::find_if(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.name == name; });
  if (found == passes.end()) {
    std::string names;
    for (const auto& pass : passes) {
      names += (names.empty() ? "" : ", ") + pass.name;
    }
    throw BadPipeline("recals: there is no pass '" + name + "'; there are " + names);
  }
  return *found;
}

PassOptions parse_options(const Pass& pass, const std::string& text) {
  PassOptions options;
  size_t begin = 0;
  while (begin <= text.size()) {
    const auto end = std::min(text.find(',', begin), text.size());
    const auto option = trimmed(text.substr(begin, end - begin));
    const auto equals = option.find('=');
    const auto name = trimmed(option.substr(0, equals));
    if (equals == std::string::npos || name.empty()) {
      throw BadPipeline("recals: '" + option + "' is no option of the pass '" + pass.name + "': write name=value");
    }
    if (pass.options.count(name) == 0) {
      throw BadPipeline("recals: the pass '" + pass.name + "' has no option '" + name + "'");
    }
    if (!options.emplace(name, trimmed(option.substr(equals + 1))).second) {
      throw BadPipeline("recals: the option '" + name + "' of the pass '" + pass.name + "' is given twice");
    }
    begin = end + 1;
  }
  return options;
}

} // namespace

std::vector<Step> parse_pipeline(const std::string& text) {
  const auto passes = all_passes();
  std::vector<Step> steps;
  size_t at = 0;
  while (at <= text.size()) {
    const auto stop = std::min(text.find_first_of(",{}", at), text.size());
    Step step{trimmed(text.substr(at, stop - at)), {}};
    if (step.pass.empty()) {
      throw BadPipeline(
          "recals: the pipeline '" + text + "' has an empty place at character " + std::to_string(at + 1));
    }
    const auto pass = find_pass(passes, step.pass);
    at = stop + 1;
    if (stop < text.size() && text[stop] == '{') {
      const auto close = text.find_first_of("{}", at);
      if (close == std::string::npos || text[close] == '{') {
        throw BadPipeline("recals: the options of '" + step.pass + "' do not end: a '}' is missing");
      }
      step.options = parse_options(pass, text.substr(at, close - at));
      at = close + 1;
      at = std::min(text.find_first_not_of(" \t\n", at), text.size());
      if (at < text.size() && text[at] != ',') {
        throw BadPipeline("recals: after the options of '" + step.pass + "' a ',' is expected");
      }
      at = at < text.size() ? at + 1 : text.size() + 1;
    } else if (stop < text.size() && text[stop] == '}') {
      throw BadPipeline("recals: the pipeline '" + text + "' has a '}' without a '{'");
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<Step> standard_pipeline(const std::string& last) {
  const auto users = graph_passes();
  std::vector<Step> steps;
  // Those that stand after a pass follow it at once, each with its own followers, the oldest first.
  std::function<void(const std::string&)> add = [&](const std::string& name) {
    steps.push_back({name, {}});
    for (const auto& user : users) {
      if (user.after == name) {
        add(user.name);
      }
    }
  };
  for (const char* name : {"graph", "sizes", "plan", "boundaries", "lower"}) {
    add(name);
    if (name == last) {
      return steps;
    }
  }
  throw BadPipeline("recals: the standard pipeline has no pass '" + last + "'");
}

void run_pipeline(Job& job, const std::vector<Step>& steps, const Instrumentation& instrumentation) {
  const auto passes = all_passes();
  for (const auto& step : steps) {
    const auto pass = find_pass(passes, step.pass);
    if (instrumentation.before) {
      instrumentation.before(step, job);
    }
    const bool changed = pass.run(job, step.options);
    // Printed before it is verified: what breaks the contract can be seen.
    if (instrumentation.after) {
      instrumentation.after(step, job, changed);
    }
    if (pass.checked || instrumentation.verify_each) {
      try {
        verify(job);
      } catch (const c10::Error& error) {
        TORCH_CHECK(false, error.what_without_backtrace(), " (after the pass '", pass.name, "')");
      }
    }
  }
}

} // namespace recals
