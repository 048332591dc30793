#include "passes/measure/call_spec.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include "runtime/op_rules.h"

namespace recals {

namespace {

/// What a key is made of, one after the other.
class KeyText {
 public:
  void add(int64_t number) {
    text_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void add(double number) {
    text_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    text_.append(text);
  }
  void add(const std::vector<int64_t>& numbers) {
    add(static_cast<int64_t>(numbers.size()));
    text_.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t));
  }

  void add(const Checksum& sum) {
    add(static_cast<int64_t>(sum.one));
    add(static_cast<int64_t>(sum.other));
  }

  CallKey key() const {
    return checksum_of(text_.data(), text_.size());
  }

 private:
  std::string text_;
};

void add(KeyText& text, const Layout& layout) {
  text.add(static_cast<int64_t>(layout.dtype));
  text.add(layout.sizes);
  text.add(layout.strides);
  text.add(layout.offset);
}

/// Whether it is of a kind that a key can hold.
bool add(KeyText& text, const c10::IValue& value) {
  text.add(value.tagKind());
  if (value.isNone() || value.isGenerator() || value.isDevice()) {
    return true; // where the numbers come from, and that it is the device of the step, change no memory
  }
  if (value.isBool()) {
    text.add(static_cast<int64_t>(value.toBool()));
  } else if (value.isInt()) {
    text.add(value.toInt());
  } else if (value.isDouble()) {
    text.add(value.toDouble());
  } else if (value.isComplexDouble()) {
    text.add(value.toComplexDouble().real());
    text.add(value.toComplexDouble().imag());
  } else if (value.isString()) {
    text.add(value.toStringRef());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    text.add(static_cast<int64_t>(list.size()));
    for (const auto& item : list) {
      if (!add(text, item)) {
        return false;
      }
    }
  } else {
    return false;
  }
  return true;
}

/// Does the op have a CPU kernel of its own, which autograd calls the same way with and without gradients? Forms that write
/// into given outputs are called below autograd alone, which refuses them.
bool ignores_gradients(const c10::OperatorHandle& op) {
  return writes_into_outputs(op.schema()) ||
      (!op.schema().is_mutable() && op.hasKernelForDispatchKey(c10::DispatchKey::CPU));
}

/// Adds the tensors of a call.
class Operands {
 public:
  explicit Operands(CallSpec& spec, bool ask_gradients) : spec_(spec), ask_gradients_(ask_gradients) {}

  /// Its number; -1 for none. Nothing if it has no storage that could be made again.
  std::optional<int> add(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) {
      return -1;
    }
    if (tensor.layout() != c10::kStrided || !tensor.has_storage() || tensor.is_quantized()) {
      return std::nullopt;
    }
    Operand operand{Layout(tensor)};
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    operand.storage = storages_.emplace(storage, static_cast<int>(storages_.size())).first->second;
    operand.written = written;
    operand.requires_grad = ask_gradients_ && tensor.requires_grad();
    operand.leaf = tensor.is_leaf() && !tensor.is_view();
    operand.conjugated = tensor.is_conj();
    operand.negated = tensor.is_neg();
    operand.number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    spec_.operands.push_back(std::move(operand));
    return static_cast<int>(spec_.operands.size()) - 1;
  }

 private:
  CallSpec& spec_;
  const bool ask_gradients_;
  std::unordered_map<const void*, int> storages_;
};

std::optional<CallArgument> argument_of(const c10::IValue& value, bool written, Operands& operands) {
  CallArgument argument;
  auto take = [&](const at::Tensor& tensor) {
    const auto number = operands.add(tensor, written);
    argument.operands.push_back(number.value_or(-1));
    return number.has_value();
  };
  bool taken = true;
  if (value.isTensor()) {
    argument.kind = CallArgument::Kind::Tensor;
    taken = take(value.toTensor());
  } else if (value.isTensorList()) {
    argument.kind = CallArgument::Kind::TensorList;
    for (const at::Tensor& tensor : value.toTensorList()) {
      taken = taken && take(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    argument.kind = CallArgument::Kind::OptionalTensorList;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      taken = taken && take(tensor.value_or(at::Tensor()));
    }
  } else if (value.isDevice()) {
    argument.constant = c10::IValue(c10::Device(c10::kCPU));
  } else if (!value.isGenerator()) {
    argument.constant = value;
  }
  return taken ? std::optional(std::move(argument)) : std::nullopt;
}

CallKey key_of(const CallSpec& spec, const Checksum& switches, bool& possible) {
  KeyText text;
  text.add(spec.op.name);
  text.add(spec.op.overload_name);
  text.add(static_cast<int64_t>(spec.state.grad_mode));
  text.add(static_cast<int64_t>(spec.state.autocast));
  text.add(static_cast<int64_t>(spec.state.autocast_cache));
  text.add(static_cast<int64_t>(spec.state.autocast_dtype));
  text.add(switches);
  for (const auto& operand : spec.operands) {
    add(text, operand.layout);
    text.add(static_cast<int64_t>(operand.storage));
    const auto flags = operand.written | operand.requires_grad << 1 | operand.leaf << 2 | operand.conjugated << 3 |
        operand.negated << 4 | operand.number << 5;
    text.add(static_cast<int64_t>(flags));
  }
  for (const auto& argument : spec.arguments) {
    text.add(static_cast<int64_t>(argument.kind));
    for (int operand : argument.operands) {
      text.add(static_cast<int64_t>(operand));
    }
    possible = possible && add(text, argument.constant);
  }
  return text.key();
}

} // namespace

Layout::Layout(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    dtype = c10::ScalarType::Undefined;
    return;
  }
  dtype = tensor.scalar_type();
  sizes = tensor.sizes().vec();
  strides = tensor.strides().vec();
  offset = tensor.storage_offset();
  storage_bytes = tensor.has_storage() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
}

CallState CallState::current() {
  CallState state;
  state.grad_mode = c10::GradMode::is_enabled();
  state.autocast = at::autocast::is_autocast_enabled(c10::kCPU);
  if (state.autocast) {
    state.autocast_cache = at::autocast::is_autocast_cache_enabled();
    state.autocast_dtype = at::autocast::get_autocast_dtype(c10::kCPU);
  }
  return state;
}

std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& value : values) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        tensors.push_back(tensor);
      }
    }
  }
  return tensors;
}

bool writes_into_outputs(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(
      arguments.begin(), arguments.end(), [](const c10::Argument& argument) { return argument.is_out(); });
}

std::optional<CallSpec> spec_of(
    const c10::OperatorName& op,
    const std::vector<c10::IValue>& inputs,
    const std::vector<c10::IValue>& outputs,
    const Checksum& switches) {
  const auto handle = c10::Dispatcher::singleton().findSchema(op);
  if (!handle || communicates(op.name) || inputs.size() != handle->schema().arguments().size()) {
    return std::nullopt;
  }
  CallSpec spec;
  spec.op = op;
  spec.state = CallState::current();
  // A kernel may ask for the mode by itself (oneDNN's recurrent layers keep a workspace), so that is the caller's.
  const bool asks = !ignores_gradients(*handle) || spec.state.autocast; // autocast caches the casts of leaves
  Operands operands(spec, spec.state.grad_mode && asks);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto* alias = handle->schema().arguments()[i].alias_info();
    auto argument = argument_of(inputs[i], alias != nullptr && alias->isWrite(), operands);
    if (!argument) {
      return std::nullopt;
    }
    spec.arguments.push_back(std::move(*argument));
  }
  for (const auto& result : tensors_in(outputs)) {
    if (result.defined() && result.layout() != c10::kStrided) {
      return std::nullopt;
    }
    spec.result_bytes += Layout(result).storage_bytes;
  }
  bool possible = true;
  spec.key = key_of(spec, switches, possible);
  return possible ? std::optional(std::move(spec)) : std::nullopt;
}

} // namespace recals
