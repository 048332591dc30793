#include "python_frontend/bind_graphs.h"

#include <algorithm>

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

template <typename T>
std::weak_ptr<T> weak(const std::shared_ptr<T>& pointer) {
  return pointer;
}

template <typename T>
c10::weak_intrusive_ptr<T> weak(const c10::intrusive_ptr<T>& pointer) {
  return c10::weak_intrusive_ptr<T>(pointer);
}

/// How many ops have taken a tensor, as autograd counts them, since this was made. Holds neither of them.
class Consumers {
 public:
  explicit Consumers(const at::Tensor& tensor)
      : tensor_(tensor.getIntrusivePtr()), node_(weak(tensor.grad_fn())), before_(count()) {}

  size_t since() const {
    const auto now = count();
    return now > before_ ? now - before_ : 0;
  }

 private:
  size_t count() const {
    const auto uses = static_cast<size_t>(node_.use_count());
    return uses - std::min<size_t>(uses, tensor_.expired() ? 0 : 1);
  }

  c10::weak_intrusive_ptr<c10::TensorImpl> tensor_;
  // A shared or an intrusive pointer, which differs between torch's versions.
  decltype(weak(std::declval<at::Tensor>().grad_fn())) node_;
  size_t before_;
};

} // namespace

void bind_graphs(py::module& m) {
  py::class_<Consumers>(m, "Consumers").def(py::init<const at::Tensor&>()).def("since", &Consumers::since);
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
