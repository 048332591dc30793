#include "runtime/program.h"

#include <algorithm>
#include <unordered_map>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>

#include "runtime/constants.h"
#include "runtime/containers.h"
#include "runtime/op_rules.h"
#include "runtime/ops.h"

namespace recals {

using c10::IValue;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

std::string where(const Node* node) {
  auto range = node->sourceRange();
  // A loaded file has code of its own, and tells what it was made from.
  if (auto original = range.findSourceRangeThatGenerated()) {
    range = *original;
  }
  auto place = range.file_line_col();
  if (!place) {
    return "";
  }
  auto& [file, line, column] = *place;
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(line);
}

namespace {

std::string at(const Node* node) {
  auto place = where(node);
  return place.empty() ? "" : " at " + place;
}

/// What a graph value is while the graph is flattened.
struct Handle {
  enum class Kind { Constant, Object, Register, List } kind = Kind::Constant;
  IValue constant;
  std::vector<std::string> path; // Object: from the module
  int reg = -1;
  std::vector<Handle> list;
  c10::TypePtr list_type;
};

class Compiler {
 public:
  Compiler(Program& program, CompileOptions options) : program_(program), options_(options) {}

  void run(const std::shared_ptr<Graph>& graph) {
    auto& self = *graph->inputs().at(0);
    TORCH_CHECK(
        self.type()->cast<c10::ClassType>(), "recals: the graph's first input must be the module, not ", *self.type());
    Handle object;
    object.kind = Handle::Kind::Object;
    handles_[&self] = object;
    for (size_t i = 1; i < graph->inputs().size(); ++i) {
      auto* input = graph->inputs()[i];
      program_.inputs.push_back(bind_register(input, -1));
    }
    flatten(graph, /*in_region=*/false);
    for (auto* output : graph->outputs()) {
      collect_outputs(handles_.at(output));
    }
    find_dead();
    find_replayed();
  }

 private:
  int new_register(const std::string& name, int producer) {
    Register reg;
    reg.name = name;
    reg.producer = producer;
    program_.registers.push_back(reg);
    return static_cast<int>(program_.registers.size()) - 1;
  }

  int bind_register(const Value* value, int producer) {
    Handle handle;
    handle.kind = Handle::Kind::Register;
    handle.reg = new_register(value->debugName(), producer);
    program_.registers[handle.reg].value = value;
    handles_[value] = handle;
    return handle.reg;
  }

  void bind_constant(const Value* value, IValue constant) {
    Handle handle;
    if (options_.meta != nullptr) {
      if (constant.isTensor() && constant.toTensor().defined()) {
        constant = constant_on_meta(constant.toTensor(), options_.meta->stand_in(constant.toTensor().device()));
      } else if (constant.isDevice()) {
        constant = options_.meta->stand_in(constant.toDevice());
      }
    }
    handle.constant = std::move(constant);
    handles_[value] = std::move(handle);
  }

  void collect_outputs(const Handle& handle) {
    if (handle.kind == Handle::Kind::List) {
      for (const auto& element : handle.list) {
        collect_outputs(element);
      }
      return;
    }
    TORCH_CHECK(handle.kind == Handle::Kind::Register, "recals: a straight-line graph returns tensors only");
    program_.outputs.push_back(handle.reg);
  }

  void flatten(const std::shared_ptr<Graph>& graph, bool in_region) {
    program_.graphs.push_back(graph);
    for (auto* node : graph->nodes()) {
      if (node->kind() == c10::prim::Constant) {
        auto constant = torch::jit::toIValue(node->output());
        TORCH_CHECK(constant, "recals: a constant without a value", at(node));
        bind_constant(node->output(), *constant);
      } else if (node->kind() == c10::prim::GetAttr) {
        get_attribute(node);
      } else if (node->kind() == c10::prim::SetAttr) {
        set_attribute(node);
      } else if (node->kind() == c10::prim::ListConstruct) {
        construct_list(node);
      } else if (node->kind() == c10::prim::ListUnpack) {
        unpack_list(node);
      } else if (node->kind() == ops::checkpoint) {
        call_region(node, in_region);
      } else if (node->kind() == ops::region) {
        TORCH_CHECK(!in_region, "recals: regions inside regions are not known to this version", at(node));
        in_region = true;
      } else if (node->kind() == ops::end_region) {
        in_region = false;
      } else if (ops::marks_internal(node->kind())) {
        mark_internal(node);
      } else if (ops::is_mark(node->kind())) {
        mark(node);
      } else {
        op(node);
      }
    }
  }

  void get_attribute(const Node* node) {
    auto object = handles_.at(node->input());
    TORCH_CHECK(object.kind == Handle::Kind::Object, "recals: an attribute of something that is no module", at(node));
    object.path.push_back(node->s(c10::attr::name));
    if (node->output()->type()->isSubtypeOf(*c10::TensorType::get()) ||
        node->output()->type()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
      // One register per attribute, however often and in however many regions it is read.
      auto known = std::find_if(program_.attributes.begin(), program_.attributes.end(), [&](const Attribute& a) {
        return a.path == object.path;
      });
      Handle handle;
      handle.kind = Handle::Kind::Register;
      if (known != program_.attributes.end()) {
        handle.reg = known->reg;
      } else {
        handle.reg = new_register(c10::Join(".", object.path), -1);
        program_.registers[handle.reg].attribute = true;
        program_.attributes.push_back({object.path, handle.reg});
      }
      handles_[node->output()] = handle;
    } else {
      handles_[node->output()] = object;
    }
  }

  void set_attribute(const Node* node) {
    auto object = handles_.at(node->input(0));
    auto value = handles_.at(node->input(1));
    TORCH_CHECK(
        object.kind == Handle::Kind::Object && value.kind == Handle::Kind::Register,
        "recals: only tensor attributes of modules can be assigned",
        at(node));
    ProgramNode out;
    out.name = "prim::SetAttr";
    out.set_attribute = object.path;
    out.set_attribute.push_back(node->s(c10::attr::name));
    out.inputs = {value.reg};
    program_.nodes.push_back(std::move(out));
  }

  void construct_list(const Node* node) {
    Handle handle;
    handle.kind = Handle::Kind::List;
    handle.list_type = node->output()->type()->expectRef<c10::ListType>().getElementType();
    bool constant = !handle.list_type->isSubtypeOf(*c10::OptionalType::ofTensor());
    for (auto* input : node->inputs()) {
      handle.list.push_back(handles_.at(input));
      constant = constant && handle.list.back().kind == Handle::Kind::Constant;
    }
    if (constant) {
      std::vector<IValue> elements;
      for (const auto& element : handle.list) {
        elements.push_back(element.constant);
      }
      bind_constant(node->output(), make_list(node->output()->type(), elements));
      return;
    }
    handles_[node->output()] = std::move(handle);
  }

  void unpack_list(const Node* node) {
    auto list = handles_.find(node->input());
    if (list != handles_.end()) {
      const auto elements = list->second.list;
      TORCH_CHECK(
          list->second.kind == Handle::Kind::List && elements.size() == node->outputs().size(),
          "recals: a list is unpacked into another number of values",
          at(node));
      for (size_t i = 0; i < elements.size(); ++i) {
        handles_[node->outputs()[i]] = elements[i];
      }
      return;
    }
    // The op just before returned a Tensor[]: its elements become the op's own outputs.
    auto& producer = program_.nodes.back();
    TORCH_CHECK(
        producer.returns_list && producer.source == node->input()->node() && producer.outputs.empty(),
        "recals: a Tensor[] must be unpacked right after the op that made it",
        at(node));
    const int index = static_cast<int>(program_.nodes.size()) - 1;
    for (auto* output : node->outputs()) {
      int reg = bind_register(output, index);
      program_.nodes.back().outputs.push_back(reg);
    }
  }

  void call_region(const Node* node, bool in_region) {
    TORCH_CHECK(!in_region, "recals: regions inside regions are not known to this version", at(node));
    auto object = handles_.at(node->input(0));
    auto method = torch::jit::toIValue(node->input(1));
    TORCH_CHECK(
        object.kind == Handle::Kind::Object && object.path.empty() && method,
        "recals: recals::checkpoint must name a method of the module itself",
        at(node));
    const auto name = method->toStringRef();
    auto* function = node->input(0)->type()->expectRef<c10::ClassType>().findMethod(name);
    TORCH_CHECK(function, "recals: the module has no method ", name, at(node));
    auto callee = torch::jit::toGraphFunction(*function).graph();
    const auto arguments = handles_.at(node->input(2)).list;
    TORCH_CHECK(
        callee->inputs().size() == arguments.size() + 1,
        "recals: ",
        name,
        " takes another number of tensors",
        at(node));
    handles_[callee->inputs()[0]] = object;
    for (size_t i = 0; i < arguments.size(); ++i) {
      handles_[callee->inputs()[i + 1]] = arguments[i];
    }
    flatten(callee, /*in_region=*/true);
    TORCH_CHECK(callee->outputs().size() == 1, "recals: ", name, " must return one Tensor[]");
    handles_[node->output()] = handles_.at(callee->outputs()[0]);
  }

  /// What a mark says, into `reg`. Its arguments after the value, or after the numbers of internals, begin at `first`.
  void apply_mark(const Node* node, Register& reg, size_t first) {
    auto argument = [&](size_t i) -> const IValue& { return handles_.at(node->input(first + i)).constant; };
    const auto kind = node->kind();
    const bool packs = kind == ops::pack || kind == ops::pack_internal;
    if (kind == ops::keep || kind == ops::keep_internal) {
      reg.kept = true;
      return;
    }
    if (packs) {
      reg.packer = &packer(argument(0).toStringRef());
    } else {
      reg.recomputed = true;
    }
    const size_t last = packs ? 3 : 1;
    if (first + last < node->inputs().size()) { // text may leave the default out
      reg.retained_from = static_cast<int>(argument(last).toInt());
    }
  }

  void mark(const Node* node) {
    const auto handle = handles_.at(node->input(0));
    TORCH_CHECK(handle.kind == Handle::Kind::Register, "recals: a mark on something that is no tensor", at(node));
    apply_mark(node, program_.registers[handle.reg], 1);
    handles_[node->output()] = handle;
  }

  void mark_internal(const Node* node) {
    const auto handle = handles_.at(node->input(0));
    TORCH_CHECK(
        handle.kind == Handle::Kind::Register && program_.registers[handle.reg].producer >= 0,
        "recals: ",
        node->kind().toQualString(),
        " must mark the output of an op",
        at(node));
    const int producer = program_.registers[handle.reg].producer;
    const auto name = program_.registers[handle.reg].name;
    for (int64_t number : handles_.at(node->input(1)).constant.toIntVector()) {
      const int reg = new_register(name + " saved[" + std::to_string(number) + "]", producer);
      apply_mark(node, program_.registers[reg], 2);
      program_.nodes[producer].internals.push_back({static_cast<int>(number), reg});
    }
    handles_[node->output()] = handle;
  }

  /// Folds what has no tensors (torch.device("cpu"), float("inf") of a loaded file), makes a program node of the rest.
  void op(const Node* node) {
    const auto* schema = node->maybeSchema();
    TORCH_CHECK(
        schema != nullptr, "recals: ", node->kind().toQualString(), " cannot stand in a straight-line graph", at(node));
    ProgramNode out;
    out.source = node;
    out.name = node->kind().toQualString();
    out.op = options_.on_meta != nullptr ? options_.on_meta(*node, *options_.meta) : node->getOperation();
    bool constant = true;
    for (auto* input : node->inputs()) {
      const auto& handle = handles_.at(input);
      Argument argument;
      if (is_generator(*input->type())) {
        out.generator_argument = static_cast<int>(out.arguments.size());
      }
      switch (handle.kind) {
        case Handle::Kind::Constant:
          argument.constant = handle.constant;
          break;
        case Handle::Kind::Register:
          argument.reg = handle.reg;
          add_input(out, handle.reg);
          constant = false;
          break;
        case Handle::Kind::List:
          argument.list_type = handle.list_type;
          for (const auto& element : handle.list) {
            const bool is_register = element.kind == Handle::Kind::Register;
            TORCH_CHECK(
                is_register || element.constant.isNone(),
                "recals: constants and tensors are mixed in a list",
                at(node));
            argument.list.push_back(is_register ? element.reg : -1);
            if (is_register) {
              add_input(out, element.reg);
            }
          }
          constant = false;
          break;
        case Handle::Kind::Object:
          TORCH_CHECK(is_generator(*input->type()), "recals: ", out.name, " takes a module", at(node));
          out.generator_path = handle.path;
          break;
      }
      out.arguments.push_back(std::move(argument));
    }
    const auto& type = node->outputs().empty() ? c10::TypePtr(c10::NoneType::get()) : node->outputs()[0]->type();
    if (constant && node->outputs().size() == 1 && !type->isSubtypeOf(*c10::TensorType::get()) &&
        !type->isSubtypeOf(*c10::ListType::ofTensors())) {
      torch::jit::Stack stack;
      for (const auto& argument : out.arguments) {
        stack.push_back(argument.constant);
      }
      (*out.op)(stack);
      bind_constant(node->output(), stack.back());
      return;
    }
    if (options_.meta != nullptr && constant) { // a factory
      for (size_t i = 0; i < out.arguments.size() && i < schema->arguments().size(); ++i) {
        if (schema->arguments()[i].name() == "device" && out.arguments[i].constant.isNone()) {
          out.arguments[i].constant = options_.meta->stand_in(c10::kCPU);
        }
      }
    }
    out.random = draws(*node, [&](size_t i) { return out.arguments.at(i).constant; });
    out.asks_for_grad = asks_for_grad(out.name, schema->overload_name());
    out.blanked_in_replay = written_arguments(out.name, [&](size_t i) { return out.arguments.at(i).constant; });
    const int index = static_cast<int>(program_.nodes.size());
    if (node->outputs().size() == 1 && type->isSubtypeOf(*c10::ListType::ofTensors())) {
      out.returns_list = true;
    } else {
      for (auto* output : node->outputs()) {
        TORCH_CHECK(
            output->type()->isSubtypeOf(*c10::TensorType::get()),
            "recals: ",
            out.name,
            " returns a ",
            *output->type(),
            " that depends on tensors",
            at(node));
        out.outputs.push_back(bind_register(output, index));
      }
    }
    program_.nodes.push_back(std::move(out));
  }

  static void add_input(ProgramNode& node, int reg) {
    if (std::find(node.inputs.begin(), node.inputs.end(), reg) == node.inputs.end()) {
      node.inputs.push_back(reg);
    }
  }

  void find_dead() {
    std::vector<int> last(program_.registers.size(), -1);
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      for (int reg : program_.nodes[n].inputs) {
        last[reg] = static_cast<int>(n);
      }
      for (int reg : program_.nodes[n].outputs) {
        last[reg] = static_cast<int>(n);
      }
    }
    for (int reg : program_.outputs) {
      last[reg] = -1;
    }
    for (size_t reg = 0; reg < last.size(); ++reg) {
      if (last[reg] >= 0) {
        program_.nodes[last[reg]].dead.push_back(static_cast<int>(reg));
      }
    }
  }

  void find_replayed() {
    find_recipes();
    std::vector<int> todo;
    for (const auto& reg : program_.registers) {
      TORCH_CHECK(
          reg.kept + reg.recomputed + (reg.packer != nullptr) <= 1 && (!reg.dropped() || reg.producer >= 0),
          "recals: ",
          reg.name,
          " has marks that exclude each other, or is an input that is to be dropped");
      program_.drops = program_.drops || reg.dropped();
      if (reg.recomputed) {
        todo.push_back(reg.producer);
      }
    }
    while (!todo.empty()) {
      auto& node = program_.nodes[todo.back()];
      todo.pop_back();
      if (node.replayed) {
        continue;
      }
      TORCH_CHECK(
          may_run_twice(*node.source),
          "recals: ",
          node.name,
          " must not run twice",
          at(node.source),
          ", but the plan recomputes it");
      node.replayed = true;
      for (int reg : node.inputs) {
        if (program_.runs_again(reg)) {
          todo.push_back(program_.registers[reg].producer);
        }
      }
    }
  }

  /// A node goes by its recipe where the internal that this reads is there.
  void find_recipes() {
    for (auto& node : program_.nodes) {
      const auto* recipe = recipe_of(node.name);
      for (const auto& internal : node.internals) {
        const auto& reg = program_.registers[internal.reg];
        const bool there = reg.kept || (reg.packer != nullptr && reg.packer->lossless);
        if (recipe != nullptr && internal.number == recipe->internal && there) {
          node.recipe = recipe;
          node.recipe_reg = internal.reg;
        }
      }
    }
  }

  Program& program_;
  CompileOptions options_;
  std::unordered_map<const Value*, Handle> handles_;
};

} // namespace

std::shared_ptr<const Program> Program::compile(const std::shared_ptr<Graph>& graph, CompileOptions options) {
  auto program = std::make_shared<Program>();
  program->meta = options.meta != nullptr;
  if (options.meta != nullptr) {
    program->devices = *options.meta;
  }
  Compiler(*program, options).run(graph);
  return program;
}

} // namespace recals
