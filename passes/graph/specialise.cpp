#include "passes/graph/specialise.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_pooling.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "passes/graph/functionalise.h"
#include "passes/meta/autocast.h"
#include "passes/meta/failures.h"
#include "passes/meta/meta_kernels.h"
#include "passes/meta/no_hooks.h"
#include "runtime/constants.h"
#include "runtime/containers.h"
#include "runtime/describe.h"
#include "runtime/op_rules.h"
#include "runtime/ops.h"
#include "runtime/program.h"

namespace recals {

using c10::IValue;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Stack;
using torch::jit::Value;

void collect_tensors(const IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) {
      collect_tensors(element, tensors);
    }
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      collect_tensors(element, tensors);
    }
  } else if (value.isGenericDict()) {
    for (const auto& [key, element] : sorted_entries(value.toGenericDict())) {
      collect_tensors(element, tensors);
    }
  }
}

namespace {

IValue with_next(const IValue& value, const std::vector<at::Tensor>& tensors, size_t& next) {
  if (value.isTensor()) {
    return tensors.at(next++);
  }
  if (value.isTuple()) {
    std::vector<IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) {
      elements.push_back(with_next(element, tensors, next));
    }
    return recals::make_tuple(value.type(), std::move(elements));
  }
  if (value.isList()) {
    std::vector<IValue> elements;
    for (const IValue& element : value.toListRef()) {
      elements.push_back(with_next(element, tensors, next));
    }
    return recals::make_list(value.type(), elements);
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    auto copy = dict.copy(); // with its entries in their order; the tensors are in that of the keys
    for (const auto& [key, element] : sorted_entries(dict)) {
      copy.insert_or_assign(key, with_next(element, tensors, next));
    }
    return copy;
  }
  return value;
}

bool holds_dict(const IValue& value) {
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::any_of(elements.begin(), elements.end(), holds_dict);
  }
  if (value.isList()) {
    const auto elements = value.toListRef();
    return std::any_of(elements.begin(), elements.end(), holds_dict);
  }
  return value.isGenericDict();
}

} // namespace

c10::Symbol module_attribute() {
  static const auto symbol = c10::Symbol::attr("recals_module");
  return symbol;
}

IValue with_tensors(const IValue& value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  return with_next(value, tensors, next);
}

bool holds_tensor(const IValue& value) {
  std::vector<at::Tensor> tensors;
  collect_tensors(value, tensors);
  return !tensors.empty();
}

namespace {

class Specialiser {
 public:
  Specialiser(
      const IValue& module,
      DeviceTable& devices,
      std::optional<c10::Device> target,
      OperationOnMeta operation_on_meta)
      : twin_(meta_twin(module, devices, target)),
        devices_(devices),
        target_(target),
        operation_on_meta_(operation_on_meta) {}

  FlatGraph run(const std::string& method, const std::vector<IValue>& inputs) {
    const auto type = twin_.value.toObjectRef().type();
    auto* function = type->findMethod(method);
    TORCH_CHECK(function, "recals: the module ", type->str(), " has no method '", method, "'");
    flat_.graph = std::make_shared<Graph>();
    out_ = flat_.graph.get();
    self_ = out_->addInput("self")->setType(type);
    auto input_twin = meta_twin_of_arguments(inputs, devices_, target_);
    flat_.inputs = input_twin.value.toTupleRef().elements().vec();
    for (const auto& input : flat_.inputs) {
      TORCH_CHECK(
          !input.isGenerator(),
          "recals: '",
          method,
          "' is given a random generator as an argument, which is not supported; make it an attribute of the module "
          "(self.generator = torch.Generator()), which can be seeded and exchanged between steps");
    }
    const auto& schema = function->getSchema();
    for (size_t i = 0; i < flat_.inputs.size(); ++i) {
      std::vector<at::Tensor> tensors;
      collect_tensors(flat_.inputs[i], tensors);
      for (const auto& tensor : tensors) {
        external_.insert(storage(tensor));
        auto* input = out_->addInput()->setType(c10::TensorType::get());
        if (i + 1 < schema.arguments().size()) {
          input->setDebugName(schema.arguments()[i + 1].name());
        }
        track(tensor, input);
      }
    }
    std::vector<IValue> arguments{twin_.value};
    for (const auto& input : flat_.inputs) {
      arguments.push_back(with_own_containers(input)); // the method may take something out of them
    }
    {
      at::AutoGradMode grad(true);
      const AutocastOnMeta autocast;
      flat_.result = call(function, std::move(arguments), "");
    }
    if (goes_through_dicts_ && std::any_of(flat_.inputs.begin(), flat_.inputs.end(), holds_dict)) {
      flat_.attributes.push_back(ops::kDictsInOrder);
    }
    emit_outputs(method);
    flat_.in_place = functionalise(*out_, candidates_, storage_of_, external_);
    torch::jit::ConstantPooling(flat_.graph);
    out_->lint();
    flat_.devices = devices_;
    return std::move(flat_);
  }

 private:
  [[noreturn]] void refuse(const Node* node, const std::string& why) {
    // TorchScript gives assignments and lists no place of their own; what is in front of them is on the same line.
    std::string place;
    for (const auto* near = node; place.empty() && near != node->owningBlock()->return_node(); near = near->prev()) {
      place = where(near);
    }
    TORCH_CHECK(false, "recals: ", node->kind().toQualString(), place.empty() ? "" : " at " + place, " ", why);
  }

  // --- execution -----------------------------------------------------------------------------------------------------

  IValue& get(const Value* value) {
    return environment_[value];
  }

  IValue call(torch::jit::Function* function, std::vector<IValue> arguments, const std::string& module) {
    auto* graph_function = torch::jit::tryToGraphFunction(*function);
    TORCH_CHECK(graph_function, "recals: ", function->qualname().qualifiedName(), " has no graph");
    auto graph = graph_function->graph();
    TORCH_CHECK(
        arguments.size() == graph->inputs().size(),
        "recals: ",
        function->name(),
        " takes ",
        graph->inputs().size() - 1,
        " arguments, but ",
        arguments.size() - 1,
        " were given");
    graphs_.push_back(graph);
    const auto outer = module_;
    module_ = module;
    for (size_t i = 0; i < arguments.size(); ++i) {
      environment_[graph->inputs()[i]] = std::move(arguments[i]);
    }
    block(graph->block());
    module_ = outer;
    return get(graph->outputs().at(0));
  }

  void block(const Block* block) {
    for (auto* node : const_cast<Block*>(block)->nodes()) { // iterating is not const in LibTorch
      execute(node);
    }
  }

  void execute(Node* node) {
    if (node->hasAttribute(module_attribute())) {
      module_ = node->s(module_attribute());
    }
    switch (node->kind()) {
      case c10::prim::Constant:
        get(node->output()) = torch::jit::toIValue(node->output()).value_or(IValue());
        if (get(node->output()).isGenerator()) { // of an older call in a scripted module, new in every call elsewhere
          refuse_generator(node);
        }
        note_origin(node, {get(node->output())});
        return;
      case c10::prim::GetAttr:
        get_attribute(node);
        return;
      case c10::prim::SetAttr:
        set_attribute(node);
        return;
      case c10::prim::CallMethod:
        call_method(node);
        return;
      case c10::prim::CallFunction:
        call_function(node);
        return;
      case c10::prim::If:
        branch(node);
        return;
      case c10::prim::Loop:
        loop(node);
        return;
      case c10::prim::fork:
        fork(node);
        return;
      case c10::aten::wait:
        get(node->output()) = get(node->input()).toFuture()->value();
        return;
      case c10::prim::unchecked_cast:
        get(node->output()) = get(node->input());
        return;
      case c10::prim::Uninitialized:
        get(node->output()) = IValue();
        return;
      case c10::aten::warn: // about the call, which is the same in every step
        return;
      case c10::prim::RaiseException:
        refuse(node, "is reached for these inputs: " + describe(get(node->input(0))));
      case c10::prim::PythonOp:
        refuse_python(node);
      case c10::prim::device:
        if (get(node->input()).isTensor()) {
          get(node->output()) = device_of(get(node->input()).toTensor());
          return;
        }
        break;
      default:
        break;
    }
    if (structural(node) || moves(node) || recurrent_layers(node)) {
      return;
    }
    if (makes_or_seeds_generator(*node)) {
      refuse_generator(node);
    }
    if (node->kind().is_prim() && !node->maybeOperator()) {
      refuse(
          node,
          "is not supported. Recals takes straight-line tensor code, branches and loops that shapes decide, "
          "and calls of submodules, but no context managers (torch.no_grad, torch.autocast), classes or prints; move "
          "the rest out of the method, or optimise the submodules around it.");
    }
    op(node);
  }

  [[noreturn]] void refuse_python(const Node* node) {
    refuse(
        node,
        "calls the Python function '" + static_cast<const torch::jit::PythonOp*>(node)->name() +
            "' (@torch.jit.ignore, or an autograd.Function), which TorchScript does not show; write it in TorchScript, "
            "make it an op (torch.library.custom_op, with register_fake), or optimise the submodules around it");
  }

  [[noreturn]] void refuse_generator(const Node* node) {
    refuse(
        node,
        "makes or seeds a random generator in every step, which is not supported; make the generator an attribute of "
        "the module (self.generator = torch.Generator()), and seed it outside of the method");
  }

  static bool makes_or_seeds_generator(const Node& node) {
    const auto* schema = node.maybeSchema();
    return schema != nullptr &&
        (schema->name() == "aten::Generator" || schema->name() == "aten::manual_seed" ||
         schema->name() == "aten::seed" || schema->name() == "aten::initial_seed");
  }

  /// Runs an op that stands for a part of `source`. Returns its results; a list of tensors is one result.
  std::vector<IValue> instead(
      const Node* source,
      c10::Symbol kind,
      const std::vector<IValue>& arguments,
      size_t results) {
    auto* node = instead_->create(kind, results);
    node->setSourceRange(source->sourceRange());
    for (const auto& argument : arguments) {
      if (holds_tensor(argument)) {
        auto* value = instead_->addInput();
        value->setType(argument.isTensorList() ? c10::ListType::ofTensors() : c10::TypePtr(c10::TensorType::get()));
        get(value) = argument;
        node->addInput(value);
      } else {
        auto* constant = instead_->insertConstant(argument);
        get(constant) = argument;
        node->addInput(constant);
      }
    }
    instead_->insertNode(node);
    if (kind == c10::aten::split) {
      node->output()->setType(c10::ListType::ofTensors());
    }
    op(node);
    std::vector<IValue> values;
    for (auto* output : node->outputs()) {
      values.push_back(get(output));
    }
    return values;
  }

  /// tensor.cpu() and tensor.cuda() are no ops of the dispatcher, which alone knows meta: they are written as
  /// tensor.to(device).
  bool moves(Node* node) {
    static const auto cpu = c10::Symbol::fromQualString("aten::cpu");
    static const auto cuda = c10::Symbol::fromQualString("aten::cuda");
    if (node->kind() != cpu && node->kind() != cuda) {
      return false;
    }
    const c10::Device device = node->kind() == cpu ? c10::kCPU : c10::kCUDA;
    get(node->output()) = instead(node, c10::aten::to, {get(node->input()), device, IValue(), false, false}, 1).front();
    return true;
  }

  // Note [Recurrent layers]
  // torch.nn.LSTM, GRU and RNN run all their layers in one op, which can only be run again as a whole. What the op does on
  // the CPU is written out: one op per layer, a dropout between two of them, steps before batches inside. Same kernels in
  // the same order, so the same bits. (On CUDA one kernel of cuDNN has all layers.)
  bool recurrent_layers(Node* node) {
    static const std::unordered_set<std::string> kinds = {
        "aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"};
    if (kinds.count(node->kind().toQualString()) == 0 || node->inputs().size() != 9) {
      return false;
    }
    std::vector<IValue> arguments;
    for (auto* input : node->inputs()) {
      arguments.push_back(get(input));
    }
    // The other overload takes a packed sequence: its second argument is a tensor of lengths.
    const bool packed = !arguments[3].isBool();
    if (packed || arguments[4].toInt() < 2 || !arguments[0].toTensor().defined() ||
        !device_of(arguments[0].toTensor()).is_cpu() || !is_tracked(arguments[0].toTensor())) {
      return false;
    }
    const int64_t layers = arguments[4].toInt();
    const double dropout = arguments[5].toDouble();
    const bool train = arguments[6].toBool();
    const int64_t directions = arguments[7].toBool() ? 2 : 1;
    const bool batch_first = arguments[8].toBool();
    const auto weights = arguments[2].toTensorVector();
    const auto per_layer = static_cast<int64_t>(weights.size()) / layers;
    const bool cells = arguments[1].isTensorList();
    const auto initial = cells ? arguments[1].toTensorVector() : std::vector<at::Tensor>{arguments[1].toTensor()};

    const auto transposed = [&](const IValue& tensor) {
      return batch_first ? instead(node, c10::aten::transpose, {tensor, int64_t{0}, int64_t{1}}, 1).front() : tensor;
    };
    std::vector<std::vector<at::Tensor>> states; // per kind of state, per layer
    for (const auto& state : initial) {
      states.push_back(instead(node, c10::aten::split, {state, directions, int64_t{0}}, 1).front().toTensorVector());
    }
    std::vector<std::vector<at::Tensor>> last(states.size());
    IValue x = transposed(arguments[0]);
    for (int64_t layer = 0; layer < layers; ++layer) {
      c10::List<at::Tensor> own;
      for (const auto& state : states) {
        own.push_back(state.at(static_cast<size_t>(layer)));
      }
      const auto first = weights.begin() + layer * per_layer;
      auto results = instead(
          node,
          node->kind(),
          {x,
           cells ? IValue(own) : IValue(own.get(0)),
           c10::List<at::Tensor>(std::vector<at::Tensor>(first, first + per_layer)),
           arguments[3],
           int64_t{1},
           0.0,
           train,
           arguments[7],
           false},
          1 + states.size());
      x = results[0];
      for (size_t i = 0; i < states.size(); ++i) {
        last[i].push_back(results[i + 1].toTensor());
      }
      if (dropout != 0 && train && layer + 1 < layers) {
        x = instead(node, c10::aten::dropout, {x, dropout, true}, 1).front();
      }
    }
    get(node->outputs()[0]) = transposed(x);
    for (size_t i = 0; i < states.size(); ++i) {
      get(node->outputs()[i + 1]) =
          instead(node, c10::aten::cat, {c10::List<at::Tensor>(last[i]), int64_t{0}}, 1).front();
    }
    return true;
  }

  /// Tuples, lists, dicts: executed as the interpreter does.
  bool structural(Node* node) {
    std::vector<IValue> inputs;
    for (auto* input : node->inputs()) {
      inputs.push_back(get(input));
    }
    switch (node->kind()) {
      case c10::prim::TupleConstruct:
        get(node->output()) = make_tuple(node->output()->type(), std::move(inputs));
        return true;
      case c10::prim::ListConstruct:
        get(node->output()) = make_list(node->output()->type(), inputs);
        return true;
      case c10::prim::DictConstruct:
        get(node->output()) = make_dict(node->output()->type(), inputs);
        return true;
      case c10::prim::TupleSlice: {
        const auto& elements = inputs.at(0).toTupleRef().elements().vec();
        std::vector<IValue> slice(
            elements.begin() + node->i(c10::attr::beg), elements.begin() + node->i(c10::attr::end));
        get(node->output()) = c10::ivalue::Tuple::create(std::move(slice));
        return true;
      }
      case c10::prim::isinstance:
        get(node->output()) = is_instance(inputs.at(0), node->tys(c10::attr::types));
        return true;
      case c10::prim::TupleUnpack:
        unpack(node, inputs.at(0).toTupleRef().elements().vec());
        return true;
      case c10::prim::ListUnpack:
        unpack(node, inputs.at(0).toListRef().vec());
        return true;
      default:
        return false;
    }
  }

  void unpack(Node* node, const std::vector<IValue>& elements) {
    if (elements.size() != node->outputs().size()) {
      refuse(
          node,
          "unpacks " + std::to_string(elements.size()) + " values into " + std::to_string(node->outputs().size()));
    }
    for (size_t i = 0; i < elements.size(); ++i) {
      get(node->outputs()[i]) = elements[i];
    }
  }

  void get_attribute(Node* node) {
    auto object = get(node->input()).toObject();
    const auto& name = node->s(c10::attr::name);
    auto value = object->getAttr(name);
    const auto path = path_of(object.get(), name);
    if (value.isTensor() && value.toTensor().defined()) {
      const auto& tensor = value.toTensor();
      read(tensor, path);
    } else if (value.isTensorList()) {
      value = c10::IValue(weights_of(object.get(), value.toTensorList(), node, path));
    } else if (holds_tensor(value)) {
      refuse(node, "reads '" + path + "', a container of tensors, which is not supported; make each an attribute");
    } else if (value.isGenerator()) {
      read_generator(value.toGenerator(), path);
    } else if (!value.isObject()) {
      const auto text = path + "=" + describe(value);
      if (std::find(flat_.attributes.begin(), flat_.attributes.end(), text) == flat_.attributes.end()) {
        flat_.attributes.push_back(text);
      }
    }
    get(node->output()) = std::move(value);
  }

  /// Each tensor of the module is read once.
  void read(const at::Tensor& tensor, const std::string& path) {
    if (values_.count(tensor.unsafeGetTensorImpl()) == 0) {
      external_.insert(storage(tensor));
      track(tensor, emit_get_attribute(path));
    }
  }

  /// The attribute, not the generator that it holds now, is what the step draws from.
  void read_generator(const at::Generator& generator, const std::string& path) {
    auto& known = generators_[generator.unsafeGetGeneratorImpl()];
    if (known == nullptr) {
      known = emit_get_attribute(path);
      known->setType(c10::GeneratorType::get());
    }
  }

  /// torch.nn.LSTM and GRU keep their weights in a list besides as parameters. What was saved and loaded has copies there
  /// that share the parameters' storages; the parameters are what is trained.
  c10::List<at::Tensor> weights_of(
      const c10::ivalue::Object* object,
      const c10::List<at::Tensor>& list,
      Node* node,
      const std::string& path) {
    c10::List<at::Tensor> weights;
    for (const at::Tensor& listed : list) {
      const auto& type = object->type();
      size_t found = 0;
      while (found < type->numAttributes() && !is_same(object->getSlot(found), listed)) {
        ++found;
      }
      if (found == type->numAttributes()) {
        refuse(node, "reads '" + path + "', a list of tensors that are not all parameters of that module");
      }
      const auto& weight = object->getSlot(found).toTensor();
      read(weight, path_of(object, type->getAttributeName(found)));
      weights.push_back(weight);
    }
    return weights;
  }

  bool is_same(const IValue& attribute, const at::Tensor& listed) const {
    if (!attribute.isTensor() || !attribute.toTensor().defined() || !listed.defined()) {
      return false;
    }
    const auto& tensor = attribute.toTensor();
    if (tensor.is_same(listed)) {
      return true;
    }
    const auto& own = twin_.originals.at(tensor.unsafeGetTensorImpl());
    const auto& other = twin_.originals.at(listed.unsafeGetTensorImpl());
    return own.is_alias_of(other) && own.storage_offset() == other.storage_offset() && own.sizes() == other.sizes();
  }

  std::string path_of(const c10::ivalue::Object* object, const std::string& name) {
    auto path = twin_.paths.find(object);
    TORCH_CHECK(path != twin_.paths.end(), "recals: objects that are no modules are not supported");
    return path->second.empty() ? name : path->second + "." + name;
  }

  Value* emit_get_attribute(const std::string& path) {
    Value* value = self_;
    size_t begin = 0;
    while (begin < path.size()) {
      const auto end = std::min(path.find('.', begin), path.size());
      const auto name = path.substr(begin, end - begin);
      // Each module is read once.
      auto& known = modules_[path.substr(0, end)];
      if (known == nullptr) {
        auto* read = out_->insertNode(out_->createGetAttr(value, name))->output();
        if (!read->type()->cast<c10::ClassType>()) {
          modules_.erase(path.substr(0, end));
          value = read;
          break;
        }
        known = read;
      }
      value = known;
      begin = end + 1;
    }
    // Optional[Tensor] attributes hold a tensor here.
    if (value->type()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
      value->setType(c10::TensorType::get());
    }
    return value;
  }

  void set_attribute(Node* node) {
    auto object = get(node->input(0)).toObject();
    const auto& name = node->s(c10::attr::name);
    const auto& value = get(node->input(1));
    if (value.isTensor()) {
      external_.insert(storage(value.toTensor())); // who writes to it later writes to the attribute
      Value* owner = self_;
      const auto path = twin_.paths.at(object.get());
      if (!path.empty()) {
        owner = emit_get_attribute(path);
        owner->setType(object->type());
      }
      auto* set = out_->createSetAttr(owner, name, value_of(value.toTensor(), node));
      out_->insertNode(set)->setSourceRange(node->sourceRange());
    } else if (holds_tensor(value)) {
      refuse(
          node,
          "assigns a container of tensors to '" + path_of(object.get(), name) +
              "', which is not supported; make each tensor an attribute of its own");
    } else if (describe(object->getAttr(name)) != describe(value)) {
      refuse(node, "changes the attribute '" + path_of(object.get(), name) + "', which is no tensor, in every step");
    }
    object->setAttr(name, value);
  }

  void call_method(Node* node) {
    std::vector<IValue> arguments;
    for (auto* input : node->inputs()) {
      arguments.push_back(get(input));
    }
    auto object = arguments.at(0).toObject();
    auto* function = object->type()->findMethod(node->s(c10::attr::name));
    if (function == nullptr) {
      refuse(node, "calls '" + node->s(c10::attr::name) + "', which " + object->type()->str() + " does not have");
    }
    auto path = twin_.paths.find(object.get());
    get(node->output()) = call(function, std::move(arguments), path == twin_.paths.end() ? module_ : path->second);
  }

  void call_function(Node* node) {
    auto* function = node->input(0)->type()->expectRef<c10::FunctionType>().function();
    std::vector<IValue> arguments;
    for (size_t i = 1; i < node->inputs().size(); ++i) {
      arguments.push_back(get(node->input(i)));
    }
    get(node->output()) = call(function, std::move(arguments), module_);
  }

  void branch(Node* node) {
    const auto* taken = node->blocks().at(get(node->input()).toBool() ? 0 : 1);
    block(taken);
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      get(node->outputs()[i]) = get(taken->outputs()[i]);
    }
  }

  void loop(Node* node) {
    const int64_t trips = get(node->input(0)).toInt();
    bool going = get(node->input(1)).toBool();
    std::vector<IValue> carried;
    for (size_t i = 2; i < node->inputs().size(); ++i) {
      carried.push_back(get(node->input(i)));
    }
    const auto* body = node->blocks().at(0);
    for (int64_t trip = 0; going && trip < trips; ++trip) {
      get(body->inputs()[0]) = trip;
      for (size_t i = 0; i < carried.size(); ++i) {
        get(body->inputs()[i + 1]) = carried[i];
      }
      block(body);
      going = get(body->outputs()[0]).toBool();
      for (size_t i = 0; i < carried.size(); ++i) {
        carried[i] = get(body->outputs()[i + 1]);
      }
    }
    for (size_t i = 0; i < carried.size(); ++i) {
      get(node->outputs()[i]) = carried[i];
    }
  }

  /// Runs where it is forked, in the step's own thread, as the eager module runs it.
  void fork(Node* node) {
    const auto body = node->g(c10::attr::Subgraph);
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      get(body->inputs()[i]) = get(node->input(i));
    }
    block(body->block());
    const auto& type = node->output()->type()->expectRef<c10::FutureType>();
    auto future = c10::make_intrusive<c10::ivalue::Future>(type.getElementType());
    future->markCompleted(get(body->outputs().at(0)));
    get(node->output()) = std::move(future);
  }

  // --- tensor ops ----------------------------------------------------------------------------------------------------

  bool is_tracked(const at::Tensor& tensor) const {
    return values_.count(tensor.unsafeGetTensorImpl()) != 0;
  }

  c10::Device device_of(const at::Tensor& tensor) const {
    return devices_.real(tensor.device());
  }

  /// The arguments as the meta kernel takes them: no data, and every device is one on meta.
  IValue to_meta(const IValue& value) {
    if (value.isGenerator()) { // nothing is drawn, and some meta kernels would rather have none
      return IValue();
    }
    if (value.isDevice()) {
      return devices_.stand_in(value.toDevice());
    }
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_meta()) {
      auto& copy = meta_of_constant_[value.toTensor().unsafeGetTensorImpl()];
      if (!copy.defined()) {
        copy = constant_on_meta(value.toTensor(), devices_.stand_in(value.toTensor().device()));
        alive_.push_back(value.toTensor());
      }
      return copy;
    }
    return value;
  }

  /// Where it is looked at in its order, a dict with the same entries in another order is another dict.
  void note_order(const Node* node) {
    static const std::unordered_set<c10::Symbol> kinds = {
        c10::aten::keys,
        c10::aten::values,
        c10::Symbol::fromQualString("aten::items"),
        c10::Symbol::fromQualString("aten::popitem")};
    goes_through_dicts_ = goes_through_dicts_ || kinds.count(node->kind()) != 0;
  }

  /// What an op makes of tensors of the step must be tensors that the step's graph knows.
  void check_followed(const Node* node, const std::vector<IValue>& results) {
    for (const auto& result : results) {
      std::vector<at::Tensor> tensors;
      collect_tensors(result, tensors);
      for (const auto& tensor : tensors) {
        if (tensor.defined() && tensor.is_meta() && !is_tracked(tensor)) {
          refuse(
              node,
              "returns tensors as " + node->schema().returns().at(0).type()->repr_str() +
                  ", in which the analysis cannot follow them; use an op that returns tensors or a list of them");
        }
      }
    }
  }

  void op(Node* node) {
    note_order(node);
    const auto& schema = node->schema();
    std::vector<IValue> arguments;
    bool traced = false;
    for (auto* input : node->inputs()) {
      arguments.push_back(get(input));
      std::vector<at::Tensor> tensors;
      collect_tensors(arguments.back(), tensors);
      for (const auto& tensor : tensors) {
        traced = traced || is_tracked(tensor);
      }
    }
    const bool makes_tensor = std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
      return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
          result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    });
    const bool number = node->kind() == c10::aten::tensor || node->kind() == c10::aten::scalar_tensor ||
        node->kind() == c10::prim::NumToTensor || node->kind() == c10::aten::as_tensor;
    // Factories run on meta and become nodes, and so does what draws. Numbers, and what else is computed from constants
    // alone, stay constants.
    const bool factory = makes_tensor && !number &&
        std::none_of(arguments.begin(), arguments.end(), [](const IValue& v) { return holds_tensor(v); });
    const bool random = draws(*node, [&](size_t i) { return arguments.at(i); });
    const bool on_meta =
        (traced || factory || random) && makes_tensor && !node->kind().is_prim() && !is_list_op(schema);

    if (differentiates(schema)) {
      refuse(
          node,
          "differentiates inside the step, which the analysis does not follow; return what is differentiated, and call "
          "torch.autograd.grad outside of the method");
    }
    if (traced && node->kind() == c10::aten::equal) {
      refuse(node, failure_in_words("whether tensors are equal", /*reads_data=*/true));
    }
    if (traced && !makes_tensor && !is_list_op(schema) && (schema.is_mutable() || node->hasSideEffects())) {
      refuse(node, "writes or uses a tensor without returning one, which is not supported");
    }

    for (size_t i = 0; on_meta && i < arguments.size() && i < schema.arguments().size(); ++i) {
      if (schema.arguments()[i].name() == "sparse" && arguments[i].isBool() && arguments[i].toBool()) {
        refuse(node, "makes sparse gradients, whose bytes depend on the values in a tensor; pass sparse=False");
      }
    }

    Stack stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto argument = on_meta ? to_meta(arguments[i]) : arguments[i];
      if (factory && argument.isNone() && i < schema.arguments().size() && schema.arguments()[i].name() == "device") {
        argument = devices_.stand_in(c10::kCPU);
      }
      stack.push_back(std::move(argument));
    }
    if (schema.is_vararg()) {
      stack.emplace_back(static_cast<int64_t>(node->inputs().size()));
    }
    try {
      auto operation = on_meta ? operation_on_meta_(*node, devices_) : node->getOperation();
      operation(stack);
    } catch (const c10::Error& error) {
      refuse(node, failure_in_words(error.what_without_backtrace(), traced && !makes_tensor));
    } catch (const std::exception& error) {
      refuse(node, failure_in_words(error.what(), traced && !makes_tensor));
    }
    std::vector<IValue> results(stack.end() - static_cast<int64_t>(node->outputs().size()), stack.end());
    if (on_meta) {
      check_dtypes(node, arguments);
      emit(node, arguments, results, factory);
    } else if (traced) {
      check_followed(node, results);
    } else {
      note_origin(node, results);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      get(node->outputs()[i]) = std::move(results[i]);
    }
  }

  /// Kernels of matrix products and convolutions refuse mixed dtypes, their meta kernels do not.
  void check_dtypes(const Node* node, const std::vector<IValue>& arguments) {
    static const std::unordered_set<c10::Symbol> kinds = {
        c10::aten::linear,
        c10::aten::matmul,
        c10::aten::mm,
        c10::aten::bmm,
        c10::aten::addmm,
        c10::aten::baddbmm,
        c10::aten::conv1d,
        c10::aten::conv2d,
        c10::aten::conv3d,
        c10::aten::convolution,
        c10::aten::_convolution};
    if (kinds.count(node->kind()) == 0) {
      return;
    }
    std::optional<c10::ScalarType> first;
    for (const auto& argument : arguments) {
      if (!argument.isTensor() || !argument.toTensor().defined()) {
        continue;
      }
      if (at::autocast::is_autocast_enabled(device_of(argument.toTensor()).type())) {
        return;
      }
      const auto dtype = argument.toTensor().scalar_type();
      if (first && *first != dtype) {
        refuse(
            node,
            "mixes " + dtype_name(*first) + " and " + dtype_name(dtype) +
                "; are the example inputs of the right dtype?");
      }
      first = dtype;
    }
  }

  static bool differentiates(const c10::FunctionSchema& schema) {
    return schema.name() == "aten::grad" || schema.name() == "aten::backward";
  }

  /// Where a constant comes from, for who returns one.
  void note_origin(const Node* node, const std::vector<IValue>& results) {
    for (const auto& result : results) {
      if (result.isTensor() && result.toTensor().defined()) {
        origins_.emplace(result.toTensor().unsafeGetTensorImpl(), node);
        alive_.push_back(result.toTensor());
      }
    }
  }

  /// aten::append, aten::__getitem__, aten::add.t ... work on lists, not on tensors.
  static bool is_list_op(const c10::FunctionSchema& schema) {
    if (schema.arguments().empty()) {
      return false;
    }
    const auto& type = schema.arguments()[0].type();
    const auto kind = type->kind();
    if (kind == c10::TypeKind::DictType || kind == c10::TypeKind::TupleType) {
      return true;
    }
    // Lists of any type; Tensor[] itself is what aten::cat and its like take.
    auto list = type->cast<c10::ListType>();
    return (list && list->getElementType()->kind() == c10::TypeKind::VarType) ||
        (list && schema.name() == "aten::__getitem__");
  }

  void track(const at::Tensor& tensor, Value* value) {
    values_[tensor.unsafeGetTensorImpl()] = value;
    storage_of_[value] = storage(tensor);
    alive_.push_back(tensor);
  }

  static const void* storage(const at::Tensor& tensor) {
    return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl()) : &tensor;
  }

  /// The graph value of a tensor; a tensor that no node made is a constant.
  Value* value_of(const at::Tensor& tensor, const Node* node) {
    auto known = values_.find(tensor.unsafeGetTensorImpl());
    if (known != values_.end()) {
      return known->second;
    }
    if (tensor.is_meta()) {
      refuse(node, "reads a tensor whose origin is not known");
    }
    auto* value = out_->insertConstant(tensor);
    values_[tensor.unsafeGetTensorImpl()] = value;
    alive_.push_back(tensor);
    external_.insert(storage(tensor));
    storage_of_[value] = storage(tensor);
    return value;
  }

  /// A list holds values of the step: a constant in one (the index of `x[:, index]`, say) is a view of it.
  Value* in_list(Value* value) {
    if (value->node()->kind() != c10::prim::Constant || !value->type()->isSubtypeOf(*c10::TensorType::get())) {
      return value;
    }
    auto* view = out_->insertNode(out_->create(c10::aten::detach, {value}, 1));
    view->setScope(scope_of(module_));
    return view->output()->setType(c10::TensorType::get());
  }

  Value* argument_value(const IValue& argument, const Node* node) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      return value_of(argument.toTensor(), node);
    }
    if (argument.isList() && holds_tensor(argument)) {
      std::vector<Value*> elements;
      bool optional = false;
      for (const IValue& element : argument.toListRef()) {
        optional = optional || element.isNone();
        elements.push_back(in_list(argument_value(element, node)));
      }
      const auto type = optional ? c10::TypePtr(c10::OptionalType::ofTensor()) : argument.toList().elementType();
      return out_->insertNode(out_->createList(type, elements))->output();
    }
    if (argument.isGenerator()) {
      return generators_.at(argument.toGenerator().unsafeGetGeneratorImpl());
    }
    auto constant = torch::jit::tryInsertConstant(*out_, argument);
    if (!constant) {
      refuse(node, "takes a " + argument.tagKind() + ", which cannot be written as a constant");
    }
    return *constant;
  }

  /// A trace has the numbers of Python as tensors that promote as numbers do. A saved file forgets that, so they are written
  /// as the numbers that they are, for ops that make such tensors of them again.
  static std::vector<IValue> with_numbers(const Node* source, std::vector<IValue> arguments) {
    static const std::unordered_set<c10::Symbol> kinds = {
        c10::aten::add,
        c10::aten::add_,
        c10::aten::sub,
        c10::aten::sub_,
        c10::aten::mul,
        c10::aten::mul_,
        c10::aten::div,
        c10::aten::div_};
    if (kinds.count(source->kind()) != 0 && arguments.size() > 1 && arguments[1].isTensor()) {
      const auto& other = arguments[1].toTensor();
      if (other.defined() && !other.is_meta() && other.unsafeGetTensorImpl()->is_wrapped_number()) {
        arguments[1] = other.item();
      }
    }
    return arguments;
  }

  void emit(Node* source, const std::vector<IValue>& given, std::vector<IValue>& results, bool factory) {
    const auto arguments = with_numbers(source, given);
    copy_written_constants(source, arguments);
    std::vector<Value*> inputs;
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto argument = arguments[i];
      // A factory without a dtype makes the default one, which may be another when it is replayed.
      if (factory && argument.isNone() && results.size() == 1 && results[0].isTensor() &&
          i < source->schema().arguments().size() && source->schema().arguments()[i].name() == "dtype") {
        argument = static_cast<int64_t>(results[0].toTensor().scalar_type());
      }
      inputs.push_back(argument_value(argument, source));
    }
    auto* node = out_->create(source->kind(), inputs, 0);
    node->setSourceRange(source->sourceRange());
    node->setScope(scope_of(module_));
    out_->insertNode(node);
    for (auto& result : results) {
      if (result.isTensor()) {
        auto* value = node->addOutput()->setType(c10::TensorType::get());
        name_after(value, source);
        const auto& tensor = result.toTensor();
        if (tensor.defined()) {
          track(tensor, value);
        }
      } else if (result.isTensorList()) {
        auto* list = node->addOutput()->setType(c10::ListType::ofTensors());
        const auto tensors = result.toTensorVector();
        auto* unpack = out_->insertNode(out_->createListUnpack(list, tensors.size()));
        for (size_t i = 0; i < tensors.size(); ++i) {
          auto* value = unpack->outputs()[i]->setType(c10::TensorType::get());
          name_after(value, source);
          track(tensors[i], value);
        }
      } else {
        refuse(source, "returns a " + result.tagKind() + " that depends on tensors");
      }
    }
    if (node->maybeSchema() == nullptr) {
      refuse(source, "has no schema that fits its arguments");
    }
    follow_written_constants(source, arguments, node);
    if (has_safe_twin(node, arguments, results)) {
      const auto& written = arguments[0].toTensor();
      auto& view = candidates_[node];
      if (is_differentiable_view(written)) {
        view = WrittenView{written.sizes().vec(), written.strides().vec()};
      }
    }
  }

  static bool writes(const Node* node, size_t argument) {
    const auto& arguments = node->schema().arguments();
    return argument < arguments.size() && arguments[argument].alias_info() != nullptr &&
        arguments[argument].alias_info()->isWrite();
  }

  /// A constant that the step writes (`total = torch.tensor(0.)`, `total += loss`) is a fresh tensor in every call.
  void copy_written_constants(const Node* source, const std::vector<IValue>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!writes(source, i) || !arguments[i].isTensor() || !arguments[i].toTensor().defined()) {
        continue;
      }
      const auto& tensor = arguments[i].toTensor();
      auto* value = value_of(tensor, source);
      if (value->node()->kind() != c10::prim::Constant) {
        continue;
      }
      if (tensor.is_view()) {
        refuse(
            source,
            "writes into a part of a constant tensor; make the tensor from an input (torch.zeros_like(x), say)");
      }
      auto* none = out_->insertConstant(IValue());
      auto* copy = out_->insertNode(out_->create(c10::aten::clone, {value, none}, 1));
      copy->setSourceRange(source->sourceRange());
      copy->setScope(scope_of(module_));
      auto* fresh = copy->output()->setType(c10::TensorType::get());
      values_[tensor.unsafeGetTensorImpl()] = fresh;
      // Seen on meta it is another storage than the constant's.
      storage_of_[fresh] = fresh;
    }
  }

  /// After the write, the name of the constant stands for what was written.
  void follow_written_constants(const Node* source, const std::vector<IValue>& arguments, Node* written) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (writes(source, i) && arguments[i].isTensor() && arguments[i].toTensor().defined() &&
          !arguments[i].toTensor().is_meta() && written->outputs().size() == 1) {
        values_[arguments[i].toTensor().unsafeGetTensorImpl()] = written->output();
      }
    }
  }

  void name_after(Value* value, const Node* source) {
    std::string name = source->kind().toUnqualString();
    while (!name.empty() && name.back() == '_') {
      name.pop_back();
    }
    value->setDebugName(name.empty() ? "value" : name);
  }

  torch::jit::ScopePtr scope_of(const std::string& module) {
    auto& scope = scopes_[module];
    if (!scope) {
      scope = c10::make_intrusive<torch::jit::Scope>();
      if (!module.empty()) {
        scope = scope->push(c10::Symbol::fromQualString("scope::" + module));
      }
    }
    return scope;
  }

  static bool is_differentiable_view(const at::Tensor& tensor) {
    return tensor.is_view() && tensor.requires_grad();
  }

  bool has_safe_twin(Node* node, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
    const auto& schema = node->schema();
    const auto twin_name = out_of_place(node->kind().toQualString());
    if (twin_name.empty() || results.size() != 1 || schema.arguments().empty() ||
        schema.arguments()[0].alias_info() == nullptr || !schema.arguments()[0].alias_info()->isWrite()) {
      return false;
    }
    for (size_t i = 1; i < schema.arguments().size(); ++i) {
      if (schema.arguments()[i].alias_info() != nullptr && schema.arguments()[i].alias_info()->isWrite()) {
        return false;
      }
    }
    // Note [Views that are written]
    const auto& written = arguments[0].toTensor();
    if (is_differentiable_view(written) && !(written.is_contiguous() && written._base().is_contiguous())) {
      return false;
    }
    auto* twin = out_->create(c10::Symbol::fromQualString(twin_name), node->inputs(), 1);
    twin->output()->setType(c10::TensorType::get());
    bool same = false;
    if (auto operation = twin->maybeOperator(); operation && !operation->schema().is_mutable()) {
      Stack stack;
      for (const auto& argument : arguments) {
        stack.push_back(to_meta(argument));
      }
      try {
        at::NoGradGuard no_grad;
        twin->getOperation()(stack);
        const auto& before = arguments[0].toTensor();
        const auto& after = stack.back().toTensor();
        same = after.scalar_type() == before.scalar_type() && after.sizes() == before.sizes() &&
            after.strides() == before.strides();
      } catch (const std::exception&) {
        same = false;
      }
    }
    twin->destroy();
    return same;
  }

  void emit_outputs(const std::string& method) {
    std::vector<at::Tensor> tensors;
    collect_tensors(flat_.result, tensors);
    TORCH_CHECK(!tensors.empty(), "recals: '", method, "' returns no tensor, so there is nothing to train");
    for (const auto& tensor : tensors) {
      auto known = values_.find(tensor.unsafeGetTensorImpl());
      if (known == values_.end() || known->second->node()->kind() == c10::prim::Constant) {
        refuse_constant(tensor, method);
      }
      out_->registerOutput(known->second);
    }
  }

  [[noreturn]] void refuse_constant(const at::Tensor& tensor, const std::string& method) {
    const auto origin = origins_.find(tensor.unsafeGetTensorImpl());
    const auto* node = origin == origins_.end() ? nullptr : origin->second;
    const auto place = node == nullptr ? "" : where(node);
    TORCH_CHECK(
        false,
        "recals: '",
        method,
        "' returns a constant tensor, ",
        describe(tensor),
        node == nullptr ? "" : c10::str(", that ", node->kind().toQualString(), " makes"),
        place.empty() ? "" : " at " + place,
        ", which is the same in every step; leave it out, or make it from an input (x.new_zeros([]), say)");
  }

  MetaTwin twin_;
  DeviceTable& devices_;
  const std::optional<c10::Device> target_;
  const OperationOnMeta operation_on_meta_;
  FlatGraph flat_;
  Graph* out_ = nullptr;
  Value* self_ = nullptr;
  std::string module_;
  std::unordered_map<const Value*, IValue> environment_;
  std::unordered_map<const c10::TensorImpl*, Value*> values_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> meta_of_constant_;
  std::unordered_map<std::string, Value*> modules_; ///< by path
  std::unordered_map<std::string, torch::jit::ScopePtr> scopes_;
  std::unordered_map<const c10::GeneratorImpl*, Value*> generators_; ///< that attributes hold
  StorageOf storage_of_;
  std::unordered_set<const void*> external_;
  Candidates candidates_;
  std::unordered_map<const c10::TensorImpl*, const Node*> origins_; ///< of constants
  bool goes_through_dicts_ = false;
  std::vector<at::Tensor> alive_; ///< so that no TensorImpl or StorageImpl is reused while maps are keyed by them
  std::vector<std::shared_ptr<Graph>> graphs_;
  std::shared_ptr<Graph> instead_ = std::make_shared<Graph>(); ///< of the nodes that stand for others
};

} // namespace

FlatGraph specialise(
    const IValue& module,
    const std::string& method,
    const std::vector<IValue>& inputs,
    std::optional<c10::Device> target,
    OperationOnMeta on_meta) {
  TORCH_CHECK(module.isObject(), "recals: a module is expected");
  DeviceTable devices;
  const MetaKernels kernels(devices);
  const NoSavedTensorHooks no_hooks;
  auto flat = Specialiser(module, devices, target, on_meta).run(method, inputs);
  const bool in_order =
      std::find(flat.attributes.begin(), flat.attributes.end(), ops::kDictsInOrder) != flat.attributes.end();
  flat.signature = describe_step(
      module, c10::ivalue::Tuple::create(inputs), target, in_order ? DictOrder::Stored : DictOrder::Sorted);
  return flat;
}

} // namespace recals
