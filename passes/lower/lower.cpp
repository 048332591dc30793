#include "passes/lower/lower.h"

#include <set>
#include <unordered_map>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_pooling.h>

#include "passes/lower/retype.h"
#include "runtime/containers.h"
#include "runtime/describe.h"
#include "runtime/mismatch.h"
#include "runtime/ops.h"
#include "runtime/step_check.h"

namespace recals {

using c10::IValue;
using torch::jit::Graph;
using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Value;

namespace {

using ops::kPlanAttribute;
constexpr const char* kMethodAttribute = "recals_method";
constexpr const char* kPrefix = "recals_";

/// A method under construction: takes nodes of the flat graph over, and makes constants, attributes and lists anew.
class MethodBuilder {
 public:
  explicit MethodBuilder(const c10::ClassTypePtr& type) : graph(std::make_shared<Graph>()) {
    self = graph->addInput("self")->setType(type);
  }

  /// What stands for `value` of the flat graph here; `missing(value)` if it is made elsewhere.
  Value* get(Value* value, const std::function<Value*(Value*)>& missing) {
    auto known = values_.find(value);
    if (known != values_.end()) {
      return known->second;
    }
    auto* node = value->node();
    Value* here = nullptr;
    if (node->kind() == c10::prim::Constant) {
      here = graph->insertConstant(*torch::jit::toIValue(value));
    } else if (node->kind() == c10::prim::GetAttr) {
      auto* owner = node->input()->node()->kind() == c10::prim::Param ? self : get(node->input(), missing);
      here = graph->insertNode(graph->createGetAttr(owner, node->s(c10::attr::name)))->output();
      here->setType(value->type());
    } else if (node->kind() == c10::prim::ListConstruct) {
      std::vector<Value*> elements;
      for (auto* input : node->inputs()) {
        elements.push_back(get(input, missing));
      }
      return graph->insertNode(graph->createList(value->type()->expectRef<c10::ListType>().getElementType(), elements))
          ->output();
    } else {
      here = missing(value);
    }
    values_[value] = here;
    return here;
  }

  void set(Value* value, Value* here) {
    values_[value] = here;
  }

  void take(Node* node, const std::function<Value*(Value*)>& missing) {
    std::vector<Value*> inputs;
    for (auto* input : node->inputs()) {
      inputs.push_back(
          node->kind() == c10::prim::SetAttr && input->node()->kind() == c10::prim::Param &&
                  input->type()->cast<c10::ClassType>()
              ? self
              : get(input, missing));
    }
    auto* copy = graph->create(node->kind(), inputs, node->outputs().size());
    copy->copyAttributes(*node);
    copy->copyMetadata(node);
    graph->insertNode(copy);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      auto* output = node->outputs()[i];
      copy->outputs()[i]->setType(output->type());
      if (output->hasDebugName()) {
        copy->outputs()[i]->setDebugName(output->debugNameBase());
      }
      values_[output] = copy->outputs()[i];
    }
  }

  std::shared_ptr<Graph> graph;
  Value* self;

 private:
  std::unordered_map<Value*, Value*> values_;
};

Value* tensor_list(Graph& graph, const std::vector<Value*>& tensors) {
  return graph.insertNode(graph.createList(c10::TensorType::get(), tensors))->output();
}

std::vector<Value*> call_checkpoint(
    Graph& graph,
    Value* self,
    const std::string& method,
    const std::vector<Value*>& inputs,
    size_t outputs) {
  auto* name = graph.insertConstant(method);
  auto* list = tensor_list(graph, inputs);
  auto* call = graph.insertNode(graph.create(ops::checkpoint, {self, name, list}, 1));
  call->output()->setType(c10::ListType::ofTensors());
  auto* unpack = graph.insertNode(graph.createListUnpack(call->output(), outputs));
  return unpack->outputs().vec();
}

class Lowering {
 public:
  Lowering(
      const Module& module,
      std::string method,
      const FlatGraph& flat,
      const std::string& plan,
      const std::string& facts,
      const std::string& on_mismatch)
      : flat_(flat), method_(std::move(method)) {
    result_ = retype(
        module,
        "_recals",
        [&](const std::string& name) { return name == method_ ? kPrefix + method_ + "_plain" : name; },
        [](const std::string&) { return true; });
    result_.register_attribute(kPlanAttribute, c10::StringType::get(), plan);
    result_.register_attribute(kMethodAttribute, c10::StringType::get(), method_);
    if (!facts.empty()) {
      result_.register_attribute(kFactsAttribute, c10::StringType::get(), facts);
    }
    if (parse_on_mismatch(on_mismatch) != OnMismatch::Warn) {
      result_.register_attribute(kOnMismatchAttribute, c10::StringType::get(), on_mismatch);
    }
  }

  Module run() {
    step();
    entry();
    return result_;
  }

 private:
  std::string name_of(const std::string& part) const {
    return kPrefix + method_ + "_" + part;
  }

  /// recals_forward_step, and a method for each region.
  void step() {
    MethodBuilder step(result_.type());
    auto unknown = [](Value* value) -> Value* {
      TORCH_INTERNAL_ASSERT(false, "recals: %", value->debugName(), " is used before it is made");
    };
    const auto inputs = flat_.graph->inputs();
    for (size_t i = 1; i < inputs.size(); ++i) {
      step.set(inputs[i], step.graph->addInput(inputs[i]->debugNameBase())->setType(c10::TensorType::get()));
    }
    const std::vector<Node*> nodes(flat_.graph->nodes().begin(), flat_.graph->nodes().end());
    for (size_t n = 0; n < nodes.size(); ++n) {
      auto* node = nodes[n];
      if (node->kind() == ops::region) {
        size_t end = n + 1;
        while (nodes.at(end)->kind() != ops::end_region) {
          ++end;
        }
        region(
            torch::jit::toIValue(node->input())->toStringRef(),
            {nodes.begin() + static_cast<int64_t>(n) + 1, nodes.begin() + static_cast<int64_t>(end)},
            step);
        n = end;
      } else if (!made_anew(node)) {
        step.take(node, unknown);
      }
    }
    std::vector<Value*> outputs;
    for (auto* output : flat_.graph->outputs()) {
      outputs.push_back(step.get(output, unknown));
    }
    step.graph->registerOutput(tensor_list(*step.graph, outputs));
    add_method(result_, name_of("step"), step.graph);
  }

  static bool made_anew(const Node* node) {
    return node->kind() == c10::prim::Constant || node->kind() == c10::prim::GetAttr ||
        node->kind() == c10::prim::ListConstruct;
  }

  void region(const std::string& name, const std::vector<Node*>& nodes, MethodBuilder& step) {
    MethodBuilder body(result_.type());
    std::vector<Value*> inputs; // of the flat graph
    auto from_outside = [&](Value* value) {
      inputs.push_back(value);
      auto* input = body.graph->addInput()->setType(value->type());
      if (value->hasDebugName()) {
        input->setDebugName(value->debugNameBase());
      }
      return input;
    };
    const std::set<Node*> inside(nodes.begin(), nodes.end());
    std::vector<Value*> outputs; // of the flat graph
    for (auto* node : nodes) {
      if (made_anew(node)) {
        continue;
      }
      body.take(node, from_outside);
      for (auto* output : node->outputs()) {
        for (const auto& use : output->uses()) {
          // A list is made anew where it is used.
          const bool leaves = used_outside(use.user, inside);
          if (leaves) {
            outputs.push_back(output);
            break;
          }
        }
      }
    }
    std::vector<Value*> results;
    for (auto* output : outputs) {
      results.push_back(body.get(output, from_outside));
    }
    body.graph->registerOutput(tensor_list(*body.graph, results));
    add_method(result_, name_of(name), body.graph);

    std::vector<Value*> arguments;
    for (auto* input : inputs) {
      arguments.push_back(step.get(input, [](Value* value) -> Value* {
        TORCH_INTERNAL_ASSERT(false, "recals: %", value->debugName(), " is used before it is made");
      }));
    }
    auto made = call_checkpoint(*step.graph, step.self, name_of(name), arguments, outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      made[i]->setType(c10::TensorType::get());
      if (outputs[i]->hasDebugName()) {
        made[i]->setDebugName(outputs[i]->debugNameBase());
      }
      step.set(outputs[i], made[i]);
    }
  }

  static bool used_outside(Node* user, const std::set<Node*>& inside) {
    if (user->kind() == c10::prim::ListConstruct) {
      for (const auto& use : user->output()->uses()) {
        if (used_outside(use.user, inside)) {
          return true;
        }
      }
      return false;
    }
    return inside.count(user) == 0;
  }

  /// The method itself: the plan's step for what was planned, the plain method for the rest.
  void entry() {
    const auto type = result_.type();
    auto& plain = type->getMethod(name_of("plain"));
    const auto plain_schema = plain.getSchema();
    auto graph = std::make_shared<Graph>();
    auto* self = graph->addInput("self")->setType(type);
    std::vector<Value*> arguments;
    for (size_t i = 1; i < plain_schema.arguments().size(); ++i) {
      const auto& argument = plain_schema.arguments()[i];
      auto* input = graph->addInput(argument.name());
      arguments.push_back(input->setType(argument.type()));
    }
    auto* all = graph->insertNode(graph->createTuple(arguments))->output();
    auto* expected = graph->insertConstant(flat_.signature);
    auto attribute_texts = flat_.attributes;
    attribute_texts.push_back(describe_tensors(result_._ivalue()));
    auto* attributes = graph->insertConstant(IValue(attribute_texts));
    auto* format = graph->insertConstant(ops::kFormatVersion);
    auto* planned =
        graph->insertNode(graph->create(ops::enter, {self, all, expected, attributes, format}, 1))->output();
    planned->setType(c10::BoolType::get());
    auto* branch = graph->insertNode(graph->create(c10::prim::If, {planned}, 0));
    auto* then_block = branch->addBlock();
    auto* else_block = branch->addBlock();
    const auto result_type = plain_schema.returns().at(0).type();
    {
      torch::jit::WithInsertPoint point(then_block);
      std::vector<Value*> tensors;
      for (size_t i = 0; i < arguments.size(); ++i) {
        take_apart(*graph, arguments[i], flat_.inputs[i], tensors);
      }
      std::vector<at::Tensor> results;
      collect_tensors(flat_.result, results);
      auto made = call_checkpoint(*graph, self, name_of("step"), tensors, results.size());
      size_t next = 0;
      then_block->registerOutput(put_together(*graph, flat_.result, result_type, made, next));
    }
    {
      torch::jit::WithInsertPoint point(else_block);
      auto* name = graph->insertConstant(name_of("plain"));
      auto* call = graph->insertNode(graph->create(ops::plain, {self, name, all}, 1));
      call->output()->setType(c10::AnyType::get());
      auto* cast = graph->insertNode(graph->create(c10::prim::unchecked_cast, {call->output()}, 1));
      else_block->registerOutput(cast->output()->setType(result_type));
    }
    graph->registerOutput(branch->addOutput()->setType(result_type));
    auto schema = c10::FunctionSchema(
        method_,
        "",
        plain_schema.arguments(),
        plain_schema.returns(),
        plain_schema.is_vararg(),
        plain_schema.is_varret());
    add_method(result_, method_, graph, schema);
  }

  /// The tensors of an argument, in the order of collect_tensors.
  static void take_apart(Graph& graph, Value* value, const IValue& example, std::vector<Value*>& tensors) {
    if (example.isTensor()) {
      if (!value->type()->isSubtypeOf(*c10::TensorType::get())) {
        auto* cast = graph.insertNode(graph.create(c10::prim::unchecked_cast, {value}, 1));
        value = cast->output()->setType(c10::TensorType::get());
      }
      tensors.push_back(value);
    } else if (example.isTuple()) {
      const auto& elements = example.toTupleRef().elements();
      auto* unpack = graph.insertNode(graph.createTupleUnpack(value));
      for (size_t i = 0; i < elements.size(); ++i) {
        take_apart(graph, unpack->outputs()[i], elements[i], tensors);
      }
    } else if (example.isList()) {
      const auto elements = example.toListRef();
      if (elements.empty() || !holds_tensor(example)) {
        return;
      }
      auto* unpack = graph.insertNode(graph.createListUnpack(value, elements.size()));
      for (size_t i = 0; i < elements.size(); ++i) {
        take_apart(graph, unpack->outputs()[i], elements[i], tensors);
      }
    } else if (example.isGenericDict()) {
      const auto element_type = value->type()->expectRef<c10::DictType>().getValueType();
      for (const auto& [name, element] : sorted_entries(example.toGenericDict())) {
        if (!holds_tensor(element)) {
          continue;
        }
        auto* key = graph.insertConstant(name);
        auto* item = graph.insertNode(graph.create(c10::aten::__getitem__, {value, key}, 1))->output();
        take_apart(graph, item->setType(element_type), element, tensors);
      }
    }
  }

  /// The result of the method from its tensors.
  static Value* put_together(
      Graph& graph,
      const IValue& result,
      const c10::TypePtr& declared,
      const std::vector<Value*>& tensors,
      size_t& next) {
    auto type = declared;
    if (auto optional = type->cast<c10::OptionalType>(); optional && !result.isNone()) {
      type = optional->getElementType();
    }
    if (result.isTensor()) {
      return tensors.at(next++);
    }
    if (result.isTuple()) {
      auto tuple = type->cast<c10::TupleType>();
      TORCH_CHECK(tuple, "recals: the method returns a tuple where its type says ", *type);
      std::vector<Value*> elements;
      for (size_t i = 0; i < tuple->elements().size(); ++i) {
        elements.push_back(put_together(graph, result.toTupleRef().elements()[i], tuple->elements()[i], tensors, next));
      }
      return graph.insertNode(graph.createTuple(elements, tuple->schema() ? tuple : nullptr))->output();
    }
    if (result.isList() && holds_tensor(result)) {
      const auto element_type = type->expectRef<c10::ListType>().getElementType();
      std::vector<Value*> elements;
      for (const IValue& element : result.toListRef()) {
        elements.push_back(put_together(graph, element, element_type, tensors, next));
      }
      return graph.insertNode(graph.createList(element_type, elements))->output();
    }
    if (result.isGenericDict() && holds_tensor(result)) {
      const auto& dict = type->expectRef<c10::DictType>();
      std::unordered_map<std::string, Value*> made;
      for (const auto& [key, value] : sorted_entries(result.toGenericDict())) {
        made[describe(key)] = put_together(graph, value, dict.getValueType(), tensors, next);
      }
      std::vector<Value*> keys;
      std::vector<Value*> values;
      for (const auto& entry : result.toGenericDict()) {
        keys.push_back(graph.insertConstant(entry.key()));
        values.push_back(made.at(describe(entry.key())));
      }
      return graph.insertNode(graph.createDict(dict.getKeyType(), dict.getValueType(), keys, values))->output();
    }
    return graph.insertConstant(result);
  }

  const FlatGraph& flat_;
  std::string method_;
  Module result_;
};

} // namespace

Module lower(
    const Module& module,
    const std::string& method,
    const FlatGraph& flat,
    const std::string& plan,
    const std::string& facts,
    const std::string& on_mismatch) {
  TORCH_CHECK(!is_lowered(module), "recals: the module is rewritten already; restore it first");
  TORCH_CHECK(
      module.type()->getForwardHooks().empty() && module.type()->getForwardPreHooks().empty(),
      "recals: the module has scripted hooks of its own, which a rewritten module would not call. Hooks of submodules "
      "are "
      "taken over: wrap the module in another one, and optimise that.");
  return Lowering(module, method, flat, plan, facts, on_mismatch).run();
}

bool is_lowered(const Module& module) {
  return module.type()->findAttributeSlot(kPlanAttribute).has_value();
}

std::string plan_of(const Module& module) {
  TORCH_CHECK(is_lowered(module), "recals: this module was not made by recals.optimize, it has no plan");
  return module.attr(kPlanAttribute).toStringRef();
}

namespace {

/// An argument of recals::enter that `lower` wrote as a constant. Files can be damaged.
IValue constant(const Value* value) {
  const auto known = torch::jit::toIValue(value);
  TORCH_CHECK(known, "recals: %", value->debugName(), " of the rewritten module is no constant; the file is damaged");
  return *known;
}

/// The texts of a constant list. A file holds it as a list that is made of constants.
std::vector<std::string> texts_of(const Value* list) {
  std::vector<std::string> texts;
  if (list->node()->kind() == c10::prim::ListConstruct) {
    for (const auto* element : list->node()->inputs()) {
      texts.push_back(constant(element).toStringRef());
    }
  } else {
    const auto elements = constant(list).toList();
    for (const IValue& element : elements) {
      texts.push_back(element.toStringRef());
    }
  }
  TORCH_CHECK(!texts.empty(), "recals: the rewritten module names no parameters; the file is damaged");
  return texts;
}

} // namespace

LoweredStep lowered_step(const Module& module) {
  TORCH_CHECK(is_lowered(module), "recals: this module was not made by recals.optimize, it has no planned step");
  LoweredStep step;
  step.method = module.attr(kMethodAttribute).toStringRef();
  auto graph_of = [&](const std::string& name) {
    return torch::jit::toGraphFunction(module.get_method(name).function()).graph();
  };
  step.graph = graph_of(kPrefix + step.method + "_step");
  for (const auto* node : graph_of(step.method)->nodes()) {
    if (node->kind() == ops::enter) {
      step.signature = constant(node->input(2)).toStringRef();
      step.attributes = texts_of(node->input(3));
      step.attributes.pop_back(); // it counts the parameters and buffers
      step.format = constant(node->input(4)).toInt();
      return step;
    }
  }
  TORCH_CHECK(
      false, "recals: the method '", step.method, "' of the rewritten module does not begin with recals::enter");
}

Module restore(const Module& module) {
  TORCH_CHECK(is_lowered(module), "recals: this module was not made by recals.optimize, there is nothing to restore");
  const auto method = module.attr(kMethodAttribute).toStringRef();
  const auto plain = kPrefix + method + "_plain";
  return retype(
      module,
      "",
      [&](const std::string& name) -> std::string {
        if (name == plain) {
          return method;
        }
        return name == method || name.rfind(kPrefix, 0) == 0 ? "" : name;
      },
      [](const std::string& attribute) {
        return attribute != kPlanAttribute && attribute != kMethodAttribute && attribute != kOnMismatchAttribute &&
            attribute != kFactsAttribute;
      });
}

} // namespace recals
