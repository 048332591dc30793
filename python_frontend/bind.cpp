/// The binding: thin, one function per capability. Types come from torch's own pybind11.

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "passes/boundaries/boundaries.h"
#include "passes/lower/lower.h"
#include "passes/measure/call_memory.h"
#include "passes/pipeline.h"
#include "passes/plan/pins.h"
#include "passes/plan/plan_json.h"
#include "passes/registry.h"
#include "passes/verification.h"
#include "python_frontend/bind_graphs.h"
#include "runtime/budget_warning.h"
#include "runtime/counters.h"
#include "runtime/debug.h"
#include "runtime/graph_passes.h"
#include "runtime/memory_tracker.h"
#include "runtime/mismatch.h"
#include "runtime/op_rules.h"
#include "runtime/ops.h"
#include "runtime/waiting.h"

namespace py = pybind11;

namespace recals {
namespace {

using torch::jit::Module;

/// Arguments as the method's schema declares them, defaults filled in.
std::vector<c10::IValue> arguments_of(const Module& module, const std::string& method, const py::tuple& inputs) {
  auto found = module.find_method(method);
  if (!found) {
    throw py::value_error("recals: the module has no method '" + method + "'");
  }
  const auto& schema = found->function().getSchema();
  torch::jit::Stack stack;
  try {
    stack = torch::jit::createStackForSchema(schema, torch::jit::tuple_slice(inputs), py::kwargs(), module._ivalue());
  } catch (const torch::jit::schema_match_error& error) {
    throw py::type_error("recals: the example inputs do not fit '" + method + "': " + error.what());
  }
  for (size_t i = 1; i < stack.size(); ++i) {
    // Torch lets None stand for a tensor.
    if (stack[i].isTensor() && !stack[i].toTensor().defined()) {
      throw py::type_error("recals: the example input '" + schema.arguments()[i].name() + "' is None, not a tensor");
    }
  }
  return {stack.begin() + 1, stack.end()};
}

std::map<std::string, plan::Limit> limits_of(const std::map<std::string, std::string>& budgets) {
  std::map<std::string, plan::Limit> limits;
  for (const auto& [device, text] : budgets) {
    auto parsed = plan::parse_limit(text);
    if (auto* bad = std::get_if<plan::BadBudget>(&parsed)) {
      throw py::value_error(bad->message);
    }
    limits[device] = std::get<plan::Limit>(parsed);
  }
  return limits;
}

std::vector<plan::Pin> pins_of(const std::vector<std::pair<std::string, std::string>>& texts) {
  std::vector<plan::Pin> pins;
  for (const auto& [pattern, text] : texts) {
    auto parsed = plan::parse_policy(text);
    if (auto* bad = std::get_if<plan::BadPin>(&parsed)) {
      throw py::value_error("recals: the pin '" + pattern + "': " + bad->message);
    }
    pins.push_back({pattern, std::get<plan::Policy>(parsed)});
  }
  return pins;
}

/// The autograd engine of a Python process must not be entered with the GIL held.
template <typename F>
auto without_gil(F work) {
  py::gil_scoped_release release;
  return work();
}

/// While a thread that has Python's lock waits for another that may need it.
void wait_without_gil(const std::function<void()>& wait) {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    without_gil([&] { wait(); });
  } else {
    wait();
  }
}

std::vector<Step> steps_between(const std::string& first, const std::string& last) {
  const auto before = standard_pipeline(first);
  auto steps = standard_pipeline(last);
  steps.erase(steps.begin(), steps.begin() + static_cast<int64_t>(before.size()));
  return steps;
}

/// The module of a job that is planned. With the GIL held, which alone guards the plain module's type and methods: all
/// scripted modules of a Python process share one compilation unit.
Module lowered(Job& job) {
  without_gil([&] { measure_changes(job); });
  run_pipeline(job, steps_between("boundaries", "lower"));
  return job.module;
}

/// A Python object that is freed only with the GIL held, by whoever lets go of it last.
std::shared_ptr<py::function> held(py::function function) {
  return {new py::function(std::move(function)), [](py::function* last) {
            py::gil_scoped_acquire gil;
            delete last;
          }};
}

/// A loss as recals/loss.py wraps it, as the dry run calls it: without the GIL.
LossFunction python_loss(py::function function) {
  return [function = held(std::move(function))](
             const c10::IValue& result, const std::shared_ptr<LossStandIns>& others) -> at::Tensor {
    py::gil_scoped_acquire gil;
    const auto stand_in = py::cpp_function([others](const py::object& value) -> py::object {
      return THPVariable_Check(value.ptr()) ? py::cast(others->of(value.cast<at::Tensor>()))
                                            : py::cast(others->of(value.cast<c10::Device>()));
    });
    try {
      const py::object loss = (*function)(torch::jit::toPyObject(result), stand_in);
      TORCH_CHECK(!py::isinstance<py::str>(loss), py::str(loss).cast<std::string>());
      return loss.cast<at::Tensor>();
    } catch (const py::error_already_set& error) {
      // Goes through code that runs without the GIL, so it cannot stay a Python exception.
      TORCH_CHECK(false, "recals: the function loss= failed: ", error.what());
    }
  };
}

/// Written only: recals/arguments.py fills them in.
void bind_options(py::module& m) {
  py::class_<StepOptions>(m, "StepOptions")
      .def(py::init())
      .def_property(
          "budgets",
          nullptr,
          [](StepOptions& options, const std::map<std::string, std::string>& budgets) {
            options.limits = limits_of(budgets);
          })
      .def_readwrite("cost_model", &StepOptions::cost_model)
      .def_property(
          "on_mismatch",
          nullptr,
          [](StepOptions& options, const std::string& on_mismatch) {
            parse_on_mismatch(on_mismatch); // throws for what is none
            options.on_mismatch = on_mismatch;
          })
      .def_property(
          "pins",
          nullptr,
          [](StepOptions& options, const std::vector<std::pair<std::string, std::string>>& pins) {
            options.pins = pins_of(pins);
          })
      .def_property(
          "target_device",
          nullptr,
          [](StepOptions& options, const std::string& device) { options.target.device = c10::Device(device); })
      .def_property(
          "preserve_rng_state", nullptr, [](StepOptions& options, bool preserve) { options.rng.preserve = preserve; })
      .def_property(
          "gpu_devices",
          nullptr,
          [](StepOptions& options, const std::vector<int>& indices) {
            options.rng.gpus.emplace(indices.begin(), indices.end());
          })
      .def_property(
          "scratch",
          nullptr,
          [](StepOptions& options, const std::string& source) { options.scratch = scratch_source(source); })
      .def_property(
          "loss", nullptr, [](StepOptions& options, py::function loss) { options.loss = python_loss(std::move(loss)); })
      .def_property("workspace_margin", nullptr, [](StepOptions& options, int64_t bytes) {
        options.target.workspace_margin = bytes;
      });
}

void bind_memory_tracker(py::module& m) {
  py::class_<MemoryTracker, std::shared_ptr<MemoryTracker>>(m, "MemoryTracker")
      .def_static("start", &MemoryTracker::start, py::arg("with_curve"))
      .def("stop", &MemoryTracker::stop)
      .def_property_readonly("hears_accelerators", &MemoryTracker::hears_accelerators)
      .def("reset_peak", &MemoryTracker::reset_peak)
      .def("live", &MemoryTracker::live)
      .def("seconds", &MemoryTracker::seconds)
      .def("devices", [](const MemoryTracker& tracker) {
        py::dict out;
        for (const auto& [name, device] : tracker.devices()) {
          py::list curve;
          for (const auto& point : device.curve) {
            curve.append(py::make_tuple(point.seconds, point.live));
          }
          py::dict entry;
          entry["live"] = device.live;
          entry["peak"] = device.peak;
          entry["curve"] = curve;
          out[py::str(name)] = entry;
        }
        return out;
      });
}

/// A user's function on torch._C.Graph, as the pipeline calls it: without the GIL.
GraphPass python_pass(const std::string& name, py::function function, const std::string& after) {
  auto run = [function = held(std::move(function)), name](const std::shared_ptr<torch::jit::Graph>& graph) {
    py::gil_scoped_acquire gil;
    try {
      (*function)(graph);
    } catch (const py::error_already_set& error) {
      // Goes through code that runs without the GIL, so it cannot stay a Python exception.
      TORCH_CHECK(false, "recals: the pass '", name, "' failed: ", error.what());
    }
  };
  return {name, "a Python function", after, run};
}

std::map<std::string, int64_t> by_device(const Job& job, const std::vector<int64_t>& bytes) {
  std::map<std::string, int64_t> named;
  for (size_t d = 0; d < bytes.size(); ++d) {
    named[job.analysis->sizes.step.devices[d]] = bytes[d];
  }
  return named;
}

void bind_passes(py::module& m) {
  py::class_<Job, std::shared_ptr<Job>>(m, "Job")
      .def_readonly("graph", &Job::graph)
      .def_property_readonly("options", [](const Job& job) { return job.options; })
      .def_property_readonly("attributes", [](const Job& job) { return job.analysis->flat.attributes; })
      .def_property_readonly("peak", [](const Job& job) { return by_device(job, job.planned->peak); })
      .def_property_readonly(
          "simulated_peak", [](const Job& job) { return by_device(job, job.planned->simulated_peak); })
      .def(
          "report",
          [](const Job& job) {
            return job.planned ? report_of(*job.analysis, *job.planned) : report_of(*job.analysis);
          })
      .def(
          "storages",
          [](const Job& job) {
            const auto& step = job.analysis->sizes.step;
            std::vector<std::tuple<std::string, std::string, std::string, int64_t>> storages;
            for (const auto& storage : step.storages) {
              const auto& producer = step.nodes[storage.producer];
              storages.emplace_back(producer.op, producer.module, storage.name, storage.bytes);
            }
            return storages;
          })
      .def_property_readonly("warnings", [](const Job& job) { return warnings_of(*job.planned); })
      .def("plan", [](const Job& job) { return json_of(*job.analysis, *job.planned); });
  m.def(
      "analyse",
      [](const Module& module, const std::string& method, const py::tuple& inputs, const StepOptions& options) {
        auto job = std::make_shared<Job>(job_of(module, method, arguments_of(module, method, inputs), options));
        without_gil([&] { run_pipeline(*job, standard_pipeline("sizes")); });
        return job;
      });
  m.def("plan_step", [](const Job& analysed, const StepOptions& options) {
    auto job = std::make_shared<Job>(analysed);
    job->options = options;
    without_gil([&] { run_pipeline(*job, steps_between("sizes", "boundaries")); });
    return job;
  });
  m.def("lower", [](const Job& planned, const std::optional<Module>& module) {
    Job job = planned;
    job.module = module.value_or(job.module);
    return lowered(job);
  });
  py::class_<plan::ParetoCurve>(m, "ParetoCurve")
      .def("text", [](const plan::ParetoCurve& curve) { return plan::to_text(curve); })
      .def("json", [](const plan::ParetoCurve& curve) { return plan::to_json(curve); });
  m.def("pareto", [](const Job& analysed, const StepOptions& options, const std::string& device) {
    Job job = analysed;
    job.options = options;
    return without_gil([&] { return pareto_of(job, device); });
  });
  m.def("remove_boundaries", [](torch::jit::Graph& graph) { return remove_boundaries(graph); });
  m.def("passes", [] {
    std::vector<std::pair<std::string, std::string>> list;
    for (const auto& pass : all_passes()) {
      list.emplace_back(pass.name, pass.summary);
    }
    return list;
  });
  m.def("register_pass", [](const std::string& name, py::function function, const std::string& after) {
    register_graph_pass(python_pass(name, std::move(function), after));
  });
  m.def("unregister_pass", &unregister_graph_pass);
}

/// A loss as the user wrote it, on the device; called without the GIL.
DeviceLoss device_loss(const py::object& function) {
  if (function.is_none()) {
    return {};
  }
  return [function = held(py::reinterpret_borrow<py::function>(function))](const c10::IValue& result) -> at::Tensor {
    py::gil_scoped_acquire gil;
    try {
      return (*function)(torch::jit::toPyObject(result)).cast<at::Tensor>();
    } catch (const py::error_already_set& error) {
      TORCH_CHECK(false, "recals: the function loss= failed: ", error.what());
    }
  };
}

void bind_verification(py::module& m) {
  py::class_<Verification>(m, "Verification")
      .def_readonly("predicted", &Verification::predicted)
      .def_readonly("measured", &Verification::measured)
      .def_readonly("differences", &Verification::differences)
      .def("holds", &Verification::holds)
      .def("text", &Verification::text);
  m.def(
      "verify_step",
      [](const Module& module,
         const std::string& method,
         const py::tuple& inputs,
         const StepOptions& options,
         const py::object& loss) {
        auto arguments = arguments_of(module, method, inputs);
        const auto on_device = device_loss(loss);
        return without_gil([&] { return verify_step(module, method, arguments, options, on_device); });
      });
}

void bind_reports(py::module& m) {
  py::class_<Report>(m, "Report").def("text", &to_text, py::arg("rows")).def("json", &to_json);
  m.def(
      "report",
      [](const Module& module, const std::string& method, const py::tuple& inputs, const StepOptions& options) {
        auto arguments = arguments_of(module, method, inputs);
        return without_gil([&] { return report_of(module, method, arguments, options); });
      });
  m.def("calibrated_path", &calibrated_path);
  m.def("cost_model_text", [](const std::string& choice, const std::string& device) {
    return cost_model_for(chosen_cost_model(choice), device).text;
  });
}

/// As recals.BudgetWarning. If a filter makes it an error, it is thrown as torch's own carrier of Python's exceptions, which
/// the autograd engine hands to the thread that called it.
void warn_in_python(const std::string& text) {
  if (Py_IsInitialized() == 0) {
    TORCH_WARN(text);
    return;
  }
  py::gil_scoped_acquire gil;
  const py::object type = py::module::import("recals._errors").attr("BudgetWarning");
  if (PyErr_WarnEx(type.ptr(), text.c_str(), 1) != 0) {
    python_error error;
    error.persist();
    throw error; // NOLINT(misc-throw-by-value-catch-by-reference): persist() needs the object
  }
}

} // namespace

PYBIND11_MODULE(_C, m) {
  handle_budget_warnings(&warn_in_python);

  // Local: errors of torch's own bindings stay what they are.
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const BudgetUnreachable& error) {
      py::object type = py::module::import("recals._errors").attr("BudgetError");
      py::object value = type(error.what(), error.smallest, error.smallest_without_pins);
      PyErr_SetObject(type.ptr(), value.ptr());
    } catch (python_error& error) { // a warning that a filter made an error
      error.restore();
    } catch (const BadBudget& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const c10::ValueError& error) {
      PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
    } catch (const c10::Error& error) {
      py::object type = py::module::import("recals._errors").attr("RecalsError");
      PyErr_SetString(type.ptr(), error.what_without_backtrace());
    }
  });

  set_waiter(&wait_without_gil);
  m.def("asks_for_grad", &asks_for_grad);
  m.def("restore", &restore);
  m.def("is_lowered", &is_lowered);
  m.def("plan_of", &plan_of);
  m.attr("FORMAT_VERSION") = ops::kFormatVersion;
  m.attr("OLDEST_FORMAT_VERSION") = ops::kOldestFormatVersion;
  m.def("counters", [] {
    const auto& c = counters();
    py::dict out;
    out["calls"] = c.calls.load();
    out["plain_calls"] = c.plain_calls.load();
    out["mismatches"] = c.mismatches.load();
    out["dropped_slots"] = c.dropped_slots.load();
    out["replays"] = c.replays.load();
    out["recomputed_nodes"] = c.recomputed_nodes.load();
    out["recomputed_bytes"] = c.recomputed_bytes.load();
    out["recompute_seconds"] = static_cast<double>(c.recompute_nanoseconds.load()) * 1e-9;
    out["packs"] = c.packs.load();
    out["unpacks"] = c.unpacks.load();
    out["rng_saves"] = c.rng_saves.load();
    out["rng_restores"] = c.rng_restores.load();
    return out;
  });
  m.def("reset_counters", &reset_counters);
  m.def("forget_measured", &call_memory::forget);
  m.def("debugging", &debugging);
  m.def("set_debugging", &set_debugging);
  m.def("budget_warning", [](const std::string& text) { without_gil([&] { budget_warning(text); }); });
  bind_graphs(m);
  bind_memory_tracker(m);
  bind_options(m);
  bind_passes(m);
  bind_reports(m);
  bind_verification(m);
}

} // namespace recals
