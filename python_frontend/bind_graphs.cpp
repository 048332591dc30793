#include "python_frontend/bind_graphs.h"

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "passes/graph/specialise.h"
#include "passes/lower/retype.h"
#include "runtime/describe.h"

namespace py = pybind11;

namespace recals {
namespace {

/// A module without attributes, whose forward is `graph`: what the graph reads are its arguments.
torch::jit::Module module_of(const std::shared_ptr<torch::jit::Graph>& graph) {
  // A unit of its own, which goes when the module does.
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const torch::jit::Module module("__torch__.recals_eager.Step", unit);
  auto forward = graph->copy();
  forward->insertInput(0, "self")->setType(module.type());
  add_method(module, "forward", forward);
  return module;
}

/// The line of the user's program that a node comes from, and the module that it belongs to.
void place(
    torch::jit::Node& node,
    const std::string& module,
    const std::string& file,
    size_t line,
    const std::string& text) {
  node.s_(module_attribute(), module);
  if (!file.empty()) {
    auto source = std::make_shared<torch::jit::Source>(text, file, line);
    node.setSourceRange(torch::jit::SourceRange(std::move(source), 0, text.size()));
  }
}

} // namespace

void bind_graphs(py::module& m) {
  m.def("module_of", &module_of);
  m.def("place", &place);
  // What a plan is made for: the inputs, and the autocast state and backend switches of this thread.
  m.def("step_text", [](const py::tuple& inputs) {
    std::vector<c10::IValue> values;
    values.reserve(inputs.size());
    for (const auto& input : inputs) {
      values.push_back(
          THPVariable_Check(input.ptr()) ? c10::IValue(input.cast<at::Tensor>())
                                         : c10::IValue(py::repr(input).cast<std::string>()));
    }
    return describe_step(c10::IValue(), c10::ivalue::Tuple::create(std::move(values)));
  });
}

} // namespace recals
