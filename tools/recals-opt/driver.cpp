#include "tools/recals-opt/driver.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include <dlfcn.h>
#include <unistd.h>

#include <ATen/autocast_mode.h>

#include "passes/lower/lower.h"
#include "passes/plan/pins.h"
#include "passes/registry.h"
#include "passes/verification.h"
#include "runtime/ops.h"
#include "tools/recals-opt/absent_devices.h"
#include "tools/recals-opt/check.h"
#include "tools/recals-opt/emit.h"
#include "tools/recals-opt/errors.h"
#include "tools/recals-opt/input_spec.h"
#include "tools/recals-opt/options.h"
#include "tools/recals-opt/planned_inputs.h"
#include "tools/recals-opt/source.h"

namespace recals::opt {

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

void load_libraries(const std::vector<std::string>& files) {
  for (const auto& file : files) {
    // Found as the shell would: a name without a slash is a file here, not one of the system's libraries.
    const auto path = file.find('/') == std::string::npos ? "./" + file : file;
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      throw BadInput(std::string("--load-library: ") + one_line(dlerror()));
    }
  }
}

std::map<std::string, plan::Limit> limits_of(const std::vector<std::string>& texts) {
  std::map<std::string, plan::Limit> limits;
  for (const auto& text : texts) {
    const auto equals = text.rfind('=');
    const auto device = equals == std::string::npos ? "" : text.substr(0, equals);
    if (equals == 0) {
      throw UsageError("--budget '" + text + "': a device is expected before '='");
    }
    const auto parsed = plan::parse_limit(equals == std::string::npos ? text : text.substr(equals + 1));
    if (const auto* bad = std::get_if<plan::BadBudget>(&parsed)) {
      throw UsageError("--budget: " + bad->message);
    }
    if (!limits.emplace(device, std::get<plan::Limit>(parsed)).second) {
      throw UsageError(
          "--budget '" + text + "': there is a budget for " + (device.empty() ? "every device" : device) + " already");
    }
  }
  return limits;
}

/// For the whole process, as `with torch.autocast(...)` does around a step.
void enable_autocast(const std::string& dtype) {
  for (const auto device : {c10::kCPU, c10::kCUDA}) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, dtype == "bf16" ? c10::kBFloat16 : c10::kHalf);
  }
}

TargetOptions target_of(const Options& options) {
  TargetOptions target;
  target.workspace_margin = options.workspace_margin;
  if (!options.target_device.empty()) {
    try {
      target.device = c10::Device(options.target_device);
    } catch (const c10::Error&) {
      throw UsageError("--target-device: '" + options.target_device + "' is no device; cpu, cuda or cuda:1, say");
    }
  }
  return target;
}

RngOptions rng_of(const Options& options) {
  RngOptions rng{.preserve = !options.no_preserve_rng_state};
  if (options.gpu_devices == "all") {
    return rng;
  }
  rng.gpus.emplace();
  std::istringstream indices(options.gpu_devices == "none" ? "" : options.gpu_devices);
  for (std::string index; std::getline(indices, index, ',');) {
    const bool number = !index.empty() && index.size() <= 2 &&
        std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!number) {
      throw UsageError("--gpu-devices: '" + options.gpu_devices + "' is not all, none, or indices such as 0,1");
    }
    rng.gpus->push_back(static_cast<c10::DeviceIndex>(std::stoi(index)));
  }
  return rng;
}

/// Numbers that every op takes: integers may be places in something.
std::vector<c10::IValue> with_numbers(std::vector<c10::IValue> inputs) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& input : inputs) {
    collect_tensors(input, tensors);
  }
  for (const auto& tensor : tensors) {
    if (tensor.defined() && !tensor.is_meta()) {
      tensor.is_floating_point() ? tensor.uniform_() : tensor.zero_();
    }
  }
  return inputs;
}

std::string cost_model_of(const Options& options) {
  if (chosen_cost_model(options.cost_model) == kProfile) {
    throw UsageError(
        "--cost-model=profile measures a step on real data, which there is none of here; use the Python API");
  }
  return options.cost_model;
}

std::vector<plan::Pin> pins_of(const Options& options) {
  if (options.pins.empty()) {
    return {};
  }
  std::ifstream file(options.pins);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    throw BadInput("--pins: " + options.pins + " cannot be read");
  }
  auto parsed = plan::parse_pins(text);
  if (const auto* bad = std::get_if<plan::BadPin>(&parsed)) {
    throw BadInput("--pins: " + options.pins + ": " + bad->message);
  }
  return std::get<std::vector<plan::Pin>>(std::move(parsed));
}

StepOptions step_options_of(const Options& options) {
  return {
      .on_mismatch = options.on_mismatch,
      .limits = limits_of(options.budgets),
      .cost_model = cost_model_of(options),
      .target = target_of(options),
      .scratch = options.scratch.empty() ? std::nullopt : std::optional(scratch_source(options.scratch)),
      .rng = rng_of(options),
      .pins = pins_of(options),
  };
}

void list_passes(std::ostream& out) {
  for (const auto& pass : all_passes()) {
    out << pass.name << std::string(std::max<int>(1, 28 - static_cast<int>(pass.name.size())), ' ') << pass.summary
        << "\n";
    for (const auto& [name, meaning] : pass.options) {
      out << "  {" << name << "=...}" << std::string(std::max<int>(1, 20 - static_cast<int>(name.size())), ' ')
          << meaning << "\n";
    }
  }
}

/// --print-ir-*, on stderr.
Instrumentation instrumentation_of(const Options& options) {
  auto known = all_passes();
  auto named = [&](const std::vector<std::string>& names) {
    for (const auto& name : names) {
      const bool there =
          name == "all" || std::any_of(known.begin(), known.end(), [&](const Pass& pass) { return pass.name == name; });
      if (!there) {
        throw UsageError("--print-ir: there is no pass '" + name + "'; --list-passes shows those there are");
      }
    }
    return [names](const std::string& pass) {
      return std::any_of(
          names.begin(), names.end(), [&](const std::string& name) { return name == "all" || name == pass; });
    };
  };
  Instrumentation instrumentation;
  instrumentation.verify_each = options.verify_each;
  instrumentation.before = [wanted = named(options.print_before)](const Step& step, const Job& job) {
    if (wanted(step.pass)) {
      std::cerr << "# before " << step.pass << "\n" << ir_of(job);
    }
  };
  instrumentation.after = [wanted = named(options.print_after), after_change = options.print_after_change](
                              const Step& step, const Job& job, bool changed) {
    if (wanted(step.pass) || (after_change && changed)) {
      std::cerr << "# after " << step.pass << "\n" << ir_of(job);
    }
  };
  return instrumentation;
}

/// What to write where it is not said.
std::string emit_of(const Options& options) {
  if (!options.emit.empty()) {
    return options.emit;
  }
  return ends_with(options.output, ".pt") || options.restore ? "pt" : "ir";
}

/// The pipeline where none is given: as far as is needed for what is written.
std::vector<Step> pipeline_of(const Options& options, const Job& job, const std::string& emit) {
  if (!options.passes.empty()) {
    return parse_pipeline(options.passes);
  }
  if (options.restore) {
    return parse_pipeline("restore");
  }
  const bool shows_file =
      job.options.limits.empty() && (emit == "pt" || emit == "ir" || emit == "code" || emit == "plan");
  if (options.inputs.empty() && shows_file) {
    return {}; // what is in the file
  }
  if (emit == "pareto" || emit == "pareto-json") {
    return standard_pipeline("sizes"); // the curve is about every budget
  }
  if (job.options.limits.empty()) {
    if (emit == "pt" || emit == "plan" || emit == "code") {
      throw UsageError("--emit=" + emit + " with --input needs a --budget");
    }
    return standard_pipeline(emit == "ir" ? "graph" : "sizes");
  }
  return standard_pipeline(emit == "pt" || emit == "code" ? "lower" : emit == "ir" ? "boundaries" : "plan");
}

bool uses_inputs(const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.pass == "graph"; });
}

std::string report_text(const Report& report, const std::string& emit) {
  return emit == "report" ? to_text(report) : to_json(report) + "\n";
}

/// Of every device, one below the other; as JSON, a list of them.
std::string pareto_text(const Job& job, const std::string& emit) {
  const bool json = emit == "pareto-json";
  if (!job.analysis || job.sized.empty()) {
    throw BadInput("there is no curve before the pass 'sizes'");
  }
  std::string text;
  for (const auto& device : job.analysis->sizes.step.devices) {
    const auto curve = pareto_of(job, device);
    text += text.empty() ? "" : json ? ",\n" : "\n";
    text += json ? plan::to_json(curve) : plan::to_text(curve);
  }
  return json ? "[\n" + text + "]\n" : text;
}

std::string emitted(const Job& job, const std::string& emit) {
  if (emit == "ir") {
    return ir_of(job);
  }
  if (emit == "code") {
    return code_of(job);
  }
  if (emit == "plan") {
    return plan_json_of(job);
  }
  if (emit == "report" || emit == "report-json") {
    return report_text(report_of(job), emit);
  }
  if (emit == "pareto" || emit == "pareto-json") {
    return pareto_text(job, emit);
  }
  return emit == "dot" ? dot_of(job) : trace_of(job);
}

/// One file, or one part of it.
class Work {
 public:
  Work(const Options& options, Source source) : options_(options) {
    job_.module = std::move(source.module);
    job_.graph = std::move(source.graph);
    job_.method = options.method;
    job_.options = step_options_of(options);
    if (is_lowered(job_.module)) {
      ops::check_format(lowered_step(job_.module).format);
    }
    absent_device_ = source.absent_device;
    if (!job_.options.target.device) {
      job_.options.target.device = absent_device_ ? absent_device_ : planned_elsewhere(job_.module);
    }
  }

  /// Text is appended to `text`; an archive goes to `file` at once.
  int run(std::string& text, AtomicFile* file) {
    if (options_.check) {
      const auto result = check(job_, options_.inputs);
      text += result.text;
      return result.within ? kDone : kOverBudget;
    }
    if (options_.verify) {
      const auto found = verify_step(
          job_.module,
          job_.method,
          with_numbers(inputs_or_planned(job_.module, job_.method, options_.inputs)),
          job_.options);
      text += found.text();
      return found.holds() ? kDone : kOverBudget;
    }
    const auto emit = options_.explain.empty() ? emit_of(options_) : "plan";
    if (reports_file(emit)) {
      const auto inputs = inputs_or_planned(job_.module, job_.method, options_.inputs);
      text += report_text(recals::report_of(job_.module, job_.method, inputs, job_.options), emit);
      return kDone;
    }
    const auto steps = pipeline_of(options_, job_, emit);
    if (uses_inputs(steps)) {
      job_.inputs = inputs_or_planned(job_.module, job_.method, options_.inputs);
      if (job_.options.limits.empty() && plans(steps)) {
        throw UsageError("the pass 'plan' needs a --budget");
      }
    }
    run_pipeline(job_, steps, instrumentation_of(options_));
    for (const auto& warning : job_.planned ? warnings_of(*job_.planned) : std::vector<std::string>()) {
      warn(warning);
    }
    if (!options_.explain.empty()) {
      text += explanation_of(plan_json_of(job_), options_.explain);
    } else if (emit == "pt") {
      check_has_data(job_.module);
      write_archive(job_, *file);
      if (absent_device_) {
        warn(
            "written with its tensors on the CPU, as there is no " + absent_device_->str() +
            " here; load it with map_location=\"" + absent_device_->str() + "\"");
      }
    } else {
      text += emitted(job_, emit);
    }
    return kDone;
  }

 private:
  /// The step that is in the file, whether it has a plan or not.
  bool reports_file(const std::string& emit) const {
    return (emit == "report" || emit == "report-json") && job_.options.limits.empty() && options_.passes.empty() &&
        options_.explain.empty();
  }

  static bool plans(const std::vector<Step>& steps) {
    return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.pass == "plan"; });
  }

  static void warn(const std::string& text) {
    std::cerr << "recals-opt: warning: " << one_line(text) << "\n";
  }

  const Options& options_;
  Job job_;
  std::optional<c10::Device> absent_device_; ///< whose tensors are on the CPU
};

int report(const std::string& place, const std::string& what, int code) {
  std::cerr << "recals-opt: " << (place.empty() ? "" : place + ": ") << one_line(what) << "\n";
  return code;
}

/// Runs `work`; what it throws becomes one line and an exit code.
template <typename F>
int guarded(const std::string& place, F work) {
  try {
    return work();
  } catch (const UsageError& error) {
    return report("", error.what(), kUsage);
  } catch (const BadPipeline& error) {
    return report("", error.what(), kUsage);
  } catch (const BadBudget& error) {
    return report("", error.what(), kUsage);
  } catch (const BudgetUnreachable& error) {
    return report(place, error.what(), kOverBudget);
  } catch (const c10::Error& error) {
    return report(place, error.what_without_backtrace(), kBadInput);
  } catch (const std::exception& error) {
    return report(place, error.what(), kBadInput);
  }
}

void write(const std::string& text, AtomicFile& file) {
  file.write(text.data(), text.size());
  file.commit();
}

int run_whole(const Options& options, const Content& content) {
  auto source = content.archive
      ? load_archive(content)
      : load_text({content.bytes, content.path}, options.method, {options.parameters, options.buffers});
  Work work(options, std::move(source));
  AtomicFile file(options.output);
  std::string text;
  const int code = work.run(text, &file);
  write(text, file);
  return code;
}

/// Each part for itself: an error in one does not keep the others from being shown.
int run_parts(const Options& options, const Content& content) {
  if (content.archive || emit_of(options) == "pt") {
    throw UsageError("--split-input-file takes text and writes text");
  }
  AtomicFile file(options.output);
  std::string text;
  int worst = kDone;
  const auto parts = split_text({content.bytes, content.path});
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string part;
    const int code = guarded(options.file + " part " + std::to_string(i + 1), [&] {
      Work work(options, load_text(parts[i], options.method, {options.parameters, options.buffers}));
      return work.run(part, nullptr);
    });
    worst = std::max(worst, code);
    text += (i == 0 ? "" : "# -----\n") + part;
  }
  write(text, file);
  return worst;
}

int run_options(const Options& options) {
  load_libraries(options.libraries);
  if (!options.autocast.empty()) {
    enable_autocast(options.autocast);
  }
  if (options.list_passes) {
    list_passes(std::cout);
    return kDone;
  }
  const bool binary = emit_of(options) == "pt" && options.explain.empty() && !options.check && !options.verify;
  if (binary && (options.output.empty() || options.output == "-") && isatty(STDOUT_FILENO) != 0) {
    throw UsageError("an archive is not printed to a terminal; name a file with -o");
  }
  const auto content = read_content(options.file);
  if (content.archive && !(options.parameters.empty() && options.buffers.empty())) {
    throw UsageError("--parameter and --buffer are for source and text graphs; an archive has its own");
  }
  return options.split ? run_parts(options, content) : run_whole(options, content);
}

} // namespace

int run(int argc, const char* const* argv) {
  const auto parsed = parse_options(argc, argv);
  if (!parsed.options) {
    return parsed.exit_code;
  }
  const auto& options = *parsed.options;
  return guarded(options.file == "-" ? "stdin" : options.file, [&] { return run_options(options); });
}

} // namespace recals::opt
