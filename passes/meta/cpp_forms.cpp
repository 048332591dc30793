#include "passes/meta/cpp_forms.h"

#include <ATen/ATen.h>

#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/function.h>

#include "passes/meta/in_place_sums.h"
#include "passes/meta/meta_allocator.h"
#include "passes/meta/meta_kernels.h"

namespace recals {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

/// A backend that nobody registers kernels for: its entries in the dispatcher's table are the forms for any backend.
constexpr auto kAnyBackend = DispatchKey::PrivateUse3;

/// How many structured ops are making their outputs: their out= forms are called with outputs that are ready.
thread_local int outputs_are_made = 0;

class OutputsAreMade {
 public:
  OutputsAreMade() {
    ++outputs_are_made;
  }
  ~OutputsAreMade() {
    --outputs_are_made;
  }
  OutputsAreMade(const OutputsAreMade&) = delete;
  OutputsAreMade& operator=(const OutputsAreMade&) = delete;
};

class Composed : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_on_meta(op, keys, *stack)) {
      op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
    } else {
      pass_on(op, keys, kMetaKernelsKey, stack);
    }
  }
};

/// Note [Derivatives that write]
/// Some formulas of derivatives write into a tensor that they have just made, unless it is what torch takes for a subclass
/// of tensors, as meta tensors are: then they make one more, which the device does not have. In these autograd nodes the
/// op calls the form that writes. A backward that is an op of its own is measured whole instead (runs_as_one).
/// Returned are the names of the nodes; null: there are none for this op.
const std::unordered_set<std::string>* derivatives_that_write(const std::string& op) {
  static const std::unordered_map<std::string, std::unordered_set<std::string>> table = {
      {"masked_fill.Scalar", {"MaximumBackward0", "MinimumBackward0"}},
      {"index_put", {"IndexBackward0"}},
  };
  const auto found = table.find(op);
  return found == table.end() ? nullptr : &found->second;
}

class WrittenInDerivatives : public Composed {
 public:
  /// `nodes`: the names of the autograd nodes; must outlive it.
  explicit WrittenInDerivatives(const std::unordered_set<std::string>& nodes) : nodes_(nodes) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const auto node = torch::autograd::get_current_node();
    if (node == nullptr || nodes_.count(node->name()) == 0 || !is_on_meta(op, keys, *stack)) {
      Composed::operator()(op, keys, stack);
      return;
    }
    const auto& name = op.operator_name();
    c10::OperatorName form = {name.name + "_", name.overload_name};
    if (name.name == "aten::index_put") {
      form = {"aten::_index_put_impl_", ""};
      torch::jit::push(*stack, true); // `unsafe`, as index_backward says
    }
    c10::Dispatcher::singleton().findSchemaOrThrow(form.name.c_str(), form.overload_name.c_str()).callBoxed(stack);
  }

 private:
  const std::unordered_set<std::string>& nodes_;
};

/// An elementwise op takes single numbers from the CPU whatever device the rest is on. LibTorch looks for the CPU itself
/// there, so those that stand for one are replaced by one on the device of the rest, for the shapes' sake.
void bring_numbers_along(const c10::OperatorHandle& op, Stack& stack) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  std::optional<c10::Device> device;
  bool several = false;
  for (auto argument = first; argument != stack.end(); ++argument) {
    if (argument->isTensor() && argument->toTensor().defined() && argument->toTensor().is_meta()) {
      const auto& tensor = argument->toTensor();
      several = several || (device && *device != tensor.device());
      if (!device || !MetaKernels::real(tensor.device()).is_cpu()) {
        device = tensor.device();
      }
    }
  }
  if (!several) {
    return;
  }
  for (auto argument = first; argument != stack.end(); ++argument) {
    if (argument->isTensor() && argument->toTensor().defined() && argument->toTensor().is_meta()) {
      const auto& tensor = argument->toTensor();
      if (tensor.dim() == 0 && tensor.device() != *device && MetaKernels::real(tensor.device()).is_cpu()) {
        const MetaAllocationPause uncounted;
        auto number = at::empty({}, tensor.options().device(*device));
        number.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
        *argument = std::move(number);
      }
    }
  }
}

class Structured : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_on_meta(op, keys, *stack)) {
      bring_numbers_along(op, *stack);
      const OutputsAreMade made;
      op.redispatchBoxed(DispatchKeySet(kAnyBackend), stack);
    } else {
      pass_on(op, keys, kMetaKernelsKey, stack);
    }
  }
};

/// add.Tensor(self, other, alpha). Note [Sums in place]
class Sum : public Structured {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (!InPlaceSums::wanted() || !is_on_meta(op, keys, *stack)) {
      Structured::operator()(op, keys, stack);
      return;
    }
    const auto self = torch::jit::peek(*stack, 0, 3).toTensor();
    const auto sizes = at::infer_size(self.sizes(), torch::jit::peek(*stack, 1, 3).toTensor().sizes());
    TORCH_CHECK(
        self.sizes() == at::IntArrayRef(sizes),
        "output with shape ",
        self.sizes(),
        " doesn't match the broadcast shape ",
        sizes);
    torch::jit::drop(*stack, 3);
    torch::jit::push(*stack, self.tensor_data());
  }
};

class IntoOutputs : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (outputs_are_made == 0 || !is_on_meta(op, keys, *stack)) {
      pass_on(op, keys, kMetaKernelsKey, stack);
      return;
    }
    // The outputs are the last arguments, and what the op returns.
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    const auto outputs = stack->end() - static_cast<std::ptrdiff_t>(op.schema().returns().size());
    stack->erase(first, outputs);
  }
};

/// Its first argument is what it writes and returns.
class InPlace : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_on_meta(op, keys, *stack)) {
      torch::jit::drop(*stack, op.schema().arguments().size() - 1);
    } else {
      pass_on(op, keys, kMetaKernelsKey, stack);
    }
  }
};

/// Changes the numbers of its first argument, and not its shape.
bool writes_in_place(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const auto& arguments = schema.arguments();
  return name.back() == '_' && name != "aten::resize_" && name != "aten::set_" && schema.returns().size() == 1 &&
      !arguments.empty() && arguments[0].type()->kind() == c10::TypeKind::TensorType &&
      arguments[0].alias_info() != nullptr && arguments[0].alias_info()->isWrite();
}

bool writes_into_outputs(const c10::FunctionSchema& schema) {
  const auto count = schema.returns().size();
  const auto& arguments = schema.arguments();
  if (count == 0 || count >= arguments.size()) {
    return false;
  }
  return std::all_of(arguments.end() - static_cast<std::ptrdiff_t>(count), arguments.end(), [](const auto& argument) {
    return argument.is_out();
  });
}

template <typename Kernel, typename... Arguments>
void add(torch::Library& library, const std::string& op, const Arguments&... arguments) {
  library.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(arguments...)));
}

} // namespace

void pass_on(const c10::OperatorHandle& op, DispatchKeySet keys, DispatchKey key, Stack* stack) {
  op.redispatchBoxed(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, key), stack);
}

std::string short_name(const c10::OperatorName& name) {
  return name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
}

bool is_on_meta(const c10::OperatorHandle& op, DispatchKeySet keys, const Stack& stack) {
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  return keys.has_backend(c10::BackendComponent::MetaBit) ||
      std::any_of(stack.end() - count, stack.end(), [](const c10::IValue& argument) {
           return argument.isDevice() && argument.toDevice().is_meta();
         });
}

void add_cpp_forms(torch::Library& library, const std::unordered_set<std::string>& others) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::unordered_set<std::string> structured; // without overloads
  std::vector<c10::OperatorHandle> into_outputs;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || others.count(short_name(name)) > 0) {
      continue;
    }
    const bool for_any_backend = op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (op->hasKernelForDispatchKey(DispatchKey::CPU)) {
      if (for_any_backend) {
        const auto op_name = short_name(name);
        op_name == "add.Tensor" ? add<Sum>(library, op_name) : add<Structured>(library, op_name);
        structured.insert(name.name);
      } else if (writes_into_outputs(op->schema())) {
        into_outputs.push_back(*op);
      } else if (writes_in_place(*op)) {
        add<InPlace>(library, short_name(name));
      }
    } else if (for_any_backend || op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) {
      const auto op_name = short_name(name);
      const auto* nodes = derivatives_that_write(op_name);
      nodes ? add<WrittenInDerivatives>(library, op_name, *nodes) : add<Composed>(library, op_name);
    }
  }
  for (const auto& op : into_outputs) {
    if (structured.count(op.operator_name().name) > 0) {
      add<IntoOutputs>(library, short_name(op.operator_name()));
    }
  }
}

} // namespace recals
