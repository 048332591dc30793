#include "runtime/call_node.h"

#include <algorithm>

namespace recals {

namespace {

const at::Tensor& tensor_of(const ProgramNode& node, const std::vector<at::Tensor>& inputs, int reg) {
  auto place = std::find(node.inputs.begin(), node.inputs.end(), reg);
  return inputs[place - node.inputs.begin()];
}

} // namespace

std::vector<at::Tensor> call_node(
    const ProgramNode& node,
    const std::vector<at::Tensor>& inputs,
    bool replay,
    const at::Generator& generator) {
  torch::jit::Stack stack;
  stack.reserve(node.arguments.size());
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    const auto& argument = node.arguments[i];
    const bool blanked = replay &&
        std::find(node.blanked_in_replay.begin(), node.blanked_in_replay.end(), i) != node.blanked_in_replay.end();
    if (blanked) {
      stack.emplace_back();
    } else if (!node.generator_path.empty() && static_cast<int>(i) == node.generator_argument) {
      stack.push_back(generator.defined() ? c10::IValue(generator) : c10::IValue());
    } else if (argument.reg >= 0) {
      const auto& tensor = tensor_of(node, inputs, argument.reg);
      stack.emplace_back(tensor.defined() ? c10::IValue(tensor) : c10::IValue());
    } else if (argument.list_type) {
      if (argument.list_type->isSubtypeOf(*c10::TensorType::get())) {
        c10::List<at::Tensor> list;
        for (int reg : argument.list) {
          list.push_back(tensor_of(node, inputs, reg));
        }
        stack.emplace_back(std::move(list));
      } else {
        c10::List<std::optional<at::Tensor>> list;
        for (int reg : argument.list) {
          list.push_back(reg >= 0 ? std::make_optional(tensor_of(node, inputs, reg)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
      }
    } else {
      stack.push_back(argument.constant);
    }
  }
  (*node.op)(stack);
  std::vector<at::Tensor> outputs;
  if (node.returns_list) {
    outputs = stack.back().toTensorVector();
    TORCH_CHECK(
        outputs.size() == node.outputs.size(),
        "recals: ",
        node.name,
        " at ",
        where(node.source),
        " returned ",
        outputs.size(),
        " tensors, but the plan was made for ",
        node.outputs.size());
    return outputs;
  }
  outputs.reserve(node.outputs.size());
  for (size_t i = stack.size() - node.outputs.size(); i < stack.size(); ++i) {
    outputs.push_back(stack[i].isNone() ? at::Tensor() : std::move(stack[i]).toTensor());
  }
  return outputs;
}

std::vector<Shown> shown_by(
    const ProgramNode& node,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs) {
  std::vector<Shown> shown;
  for (size_t i = 0; i < inputs.size(); ++i) {
    shown.push_back({node.inputs[i], &inputs[i]});
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    shown.push_back({node.outputs[i], &outputs[i]});
  }
  for (const auto& argument : node.arguments) {
    if (argument.constant.isTensor()) {
      shown.push_back({-1, &argument.constant.toTensor()});
    }
  }
  return shown;
}

c10::Device device_of_draw(const ProgramNode& node, const std::vector<at::Tensor>& inputs) {
  // rand_like(x, device="cuda") draws there, wherever x is.
  for (const auto& argument : node.arguments) {
    if (argument.constant.isDevice()) {
      return argument.constant.toDevice();
    }
  }
  // A number as a tensor may be on the CPU beside tensors that are not.
  const at::Tensor* first = nullptr;
  for (const auto& input : inputs) {
    if (input.defined() && (first == nullptr || (first->dim() == 0 && input.dim() > 0))) {
      first = &input;
    }
  }
  return first != nullptr ? first->device() : c10::Device(c10::kCPU);
}

at::Generator own_generator(const ProgramNode& node, const c10::IValue& self) {
  if (node.generator_argument < 0) {
    return {};
  }
  const auto value = node.generator_path.empty() ? node.arguments[node.generator_argument].constant
                                                 : attribute_at(self, node.generator_path, node.generator_path.size());
  return value.isGenerator() ? value.toGenerator() : at::Generator();
}

c10::IValue attribute_at(c10::IValue object, const std::vector<std::string>& path, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    object = object.toObjectRef().getAttr(path[i]);
  }
  return object;
}

} // namespace recals
