#include "tools/recals-opt/emit.h"

#include <algorithm>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/python_print.h>
#include <nlohmann/json.hpp>

#include "passes/lower/lower.h"
#include "passes/plan/plan_json.h"
#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

constexpr const char* kPlanFile = "recals_plan.json";

/// "%relu.1" and "relu.1" are the same.
std::string bare(const std::string& name) {
  return name.compare(0, 1, "%") == 0 ? name.substr(1) : name;
}

} // namespace

std::string ir_of(const Job& job) {
  if (job.graph != nullptr) {
    return job.graph->toString(/*print_source_locations=*/false);
  }
  std::string text;
  for (auto* function : job.module.type()->methods()) {
    if (auto* with_graph = torch::jit::tryToGraphFunction(*function)) {
      text += "# method " + function->name() + "\n" + with_graph->graph()->toString(false);
    }
  }
  return text;
}

std::string code_of(const Job& job) {
  if (job.graph != nullptr) {
    throw BadInput("--emit=code prints the methods of a module; let the pipeline end with 'lower', or print ir");
  }
  std::string text;
  for (auto* function : job.module.type()->methods()) {
    std::vector<at::IValue> constants;
    torch::jit::PrintDepsTable types;
    torch::jit::PythonPrint print(constants, types);
    print.printMethod(*function);
    text += print.str();
    text += text.empty() || text.back() == '\n' ? "" : "\n";
  }
  return text;
}

std::string plan_json_of(const Job& job) {
  if (job.planned) {
    return json_of(*job.analysis, *job.planned);
  }
  if (!is_lowered(job.module)) {
    throw BadInput("there is no plan: the module is not a rewritten one, and no --budget asks for a plan");
  }
  return plan_of(job.module);
}

Report report_of(const Job& job) {
  if (!job.analysis || job.sized.empty()) {
    throw BadInput("there is nothing to report before the pass 'sizes'");
  }
  return job.planned ? recals::report_of(*job.analysis, *job.planned) : recals::report_of(*job.analysis);
}

std::string explanation_of(const std::string& plan, const std::string& name) {
  const auto document = nlohmann::json::parse(plan);
  std::string near;
  int shown = 0;
  for (const auto& storage : document.at("storages")) {
    const auto known = storage.at("name").get<std::string>();
    if (bare(known) == bare(name)) {
      auto part = [&](const char* key) { return storage.at(key).get<std::string>(); };
      std::string text = known + ": " + part("fate") + "\n  " + part("reason") + "\n";
      text += "  " + std::to_string(storage.at("bytes").get<int64_t>()) + " bytes on " + part("device") + ", made by " +
          part("op");
      text += part("module").empty() ? "" : " of " + part("module");
      text += part("where").empty() ? "" : " at " + part("where");
      const auto slots = storage.at("slots").get<int64_t>();
      return text + "\n  saved by autograd " + std::to_string(slots) + (slots == 1 ? " time\n" : " times\n");
    }
    constexpr int kMostNames = 12;
    const auto stem = bare(name).substr(0, bare(name).find('.'));
    if (bare(known).compare(0, stem.size(), stem) == 0 && shown++ < kMostNames) {
      near += (near.empty() ? "" : ", ") + known;
    }
  }
  throw BadInput(
      "the plan knows no value '" + name + "'" + (near.empty() ? "; --emit=plan lists them" : "; there are " + near));
}

void write_archive(const Job& job, AtomicFile& file) {
  if (job.graph != nullptr) {
    throw BadInput("--emit=pt writes a module; let the pipeline end with 'lower' or 'restore'");
  }
  torch::jit::ExtraFilesMap extra;
  if (is_lowered(job.module)) {
    extra[kPlanFile] = plan_of(job.module);
  }
  // Torch's writer runs through C code and ends its archive in a destructor, neither of which an exception may cross: it
  // is told that all is well, and the error comes out at the end.
  std::exception_ptr error;
  torch::jit::ExportModule(
      job.module,
      [&](const void* bytes, size_t size) {
        try {
          if (!error) {
            file.write(bytes, size);
          }
        } catch (const BadInput&) {
          error = std::current_exception();
        }
        return size;
      },
      extra);
  if (error) {
    std::rethrow_exception(error);
  }
}

} // namespace recals::opt
