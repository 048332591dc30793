/// The binding: thin, one function per capability. Types come from torch's own pybind11.

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "passes/boundaries/boundaries.h"
#include "passes/lower/lower.h"
#include "passes/pipeline.h"
#include "passes/plan/plan_json.h"
#include "runtime/counters.h"
#include "runtime/memory_tracker.h"

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
  auto stack =
      torch::jit::createStackForSchema(schema, torch::jit::tuple_slice(inputs), py::kwargs(), module._ivalue());
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

/// "" and None: not given.
TargetOptions target_options(const std::string& device, std::optional<int64_t> workspace_margin) {
  TargetOptions options;
  if (!device.empty()) {
    options.device = c10::Device(device);
  }
  options.workspace_margin = workspace_margin;
  return options;
}

/// The autograd engine of a Python process must not be entered with the GIL held.
template <typename F>
auto without_gil(F work) {
  py::gil_scoped_release release;
  return work();
}

void bind_memory_tracker(py::module& m) {
  py::class_<MemoryTracker, std::shared_ptr<MemoryTracker>>(m, "MemoryTracker")
      .def_static("start", &MemoryTracker::start, py::arg("with_curve"))
      .def("stop", &MemoryTracker::stop)
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

void bind_passes(py::module& m) {
  py::class_<Analysis, std::shared_ptr<Analysis>>(m, "Analysis")
      .def_property_readonly("graph", [](const Analysis& a) { return a.flat.graph; })
      .def_property_readonly("attributes", [](const Analysis& a) { return a.flat.attributes; })
      .def_property_readonly("device", [](const Analysis& a) { return a.target.name(); })
      .def("report", [](const Analysis& a) { return report_of(a); });
  py::class_<Planned, std::shared_ptr<Planned>>(m, "Planned")
      .def_property_readonly("graph", [](const Planned& p) { return p.graph; })
      .def_property_readonly("peak", [](const Planned& p) { return p.peak; })
      .def_property_readonly("simulated_peak", [](const Planned& p) { return p.simulated_peak; })
      .def("report", [](const Planned& p, const Analysis& a) { return report_of(a, p); })
      .def("json", [](const Planned& p, const Analysis& a) { return plan::to_json(a.sizes.step, p.plan, p.budgets); });
  m.def(
      "analyse",
      [](const Module& module,
         const std::string& method,
         const py::tuple& inputs,
         const std::string& cost_model,
         const std::string& device,
         std::optional<int64_t> margin) {
        auto arguments = arguments_of(module, method, inputs);
        const auto target = target_options(device, margin);
        return without_gil(
            [&] { return std::make_shared<Analysis>(analyse(module, method, arguments, cost_model, target)); });
      });
  m.def("plan_step", [](const Analysis& analysis, const std::map<std::string, std::string>& budgets) {
    auto limits = limits_of(budgets);
    return without_gil([&] { return std::make_shared<Planned>(plan_step(analysis, limits)); });
  });
  m.def("remove_boundaries", [](torch::jit::Graph& graph) { return remove_boundaries(graph); });
  m.def("lower", [](const Module& module, const std::string& method, const Analysis& analysis, const Planned& planned) {
    auto flat = analysis.flat;
    flat.graph = planned.graph;
    return lower(module, method, flat, plan::to_json(analysis.sizes.step, planned.plan, planned.budgets));
  });
}

void bind_reports(py::module& m) {
  py::class_<Report>(m, "Report").def("text", &to_text, py::arg("rows")).def("json", &to_json);
  m.def(
      "report",
      [](const Module& module,
         const std::string& method,
         const py::tuple& inputs,
         const std::string& cost_model,
         const std::string& device,
         std::optional<int64_t> margin) {
        auto arguments = arguments_of(module, method, inputs);
        const auto target = target_options(device, margin);
        return without_gil([&] { return report_of(module, method, arguments, cost_model, target); });
      });
  m.def("calibrated_path", &calibrated_path);
  m.def("cost_model_text", [](const std::string& choice, const std::string& device) {
    return cost_model_for(chosen_cost_model(choice), device).text;
  });
}

} // namespace

PYBIND11_MODULE(_C, m) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const BudgetUnreachable& error) {
      py::object type = py::module::import("recals._errors").attr("BudgetError");
      py::object value = type(error.what(), error.smallest);
      PyErr_SetObject(type.ptr(), value.ptr());
    } catch (const BadBudget& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const c10::Error& error) {
      py::object type = py::module::import("recals._errors").attr("RecalsError");
      PyErr_SetString(type.ptr(), error.what_without_backtrace());
    }
  });

  m.def(
      "optimise",
      [](const Module& module,
         const std::string& method,
         const py::tuple& inputs,
         const std::map<std::string, std::string>& budgets,
         const std::string& cost_model,
         const std::string& device,
         std::optional<int64_t> margin) {
        auto arguments = arguments_of(module, method, inputs);
        auto limits = limits_of(budgets);
        const auto target = target_options(device, margin);
        return without_gil([&] { return optimise(module, method, arguments, limits, cost_model, target); });
      });
  m.def("restore", &restore);
  m.def("is_lowered", &is_lowered);
  m.def("plan_of", &plan_of);
  m.def("counters", [] {
    const auto& c = counters();
    py::dict out;
    out["calls"] = c.calls.load();
    out["plain_calls"] = c.plain_calls.load();
    out["dropped_slots"] = c.dropped_slots.load();
    out["replays"] = c.replays.load();
    out["recomputed_nodes"] = c.recomputed_nodes.load();
    out["recomputed_bytes"] = c.recomputed_bytes.load();
    out["recompute_seconds"] = static_cast<double>(c.recompute_nanoseconds.load()) * 1e-9;
    return out;
  });
  m.def("reset_counters", &reset_counters);
  bind_memory_tracker(m);
  bind_passes(m);
  bind_reports(m);
}

} // namespace recals
