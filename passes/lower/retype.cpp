#include "passes/lower/retype.h"

#include <torch/csrc/jit/api/function_impl.h>

namespace recals {

using c10::ClassType;
using c10::ClassTypePtr;
using torch::jit::Module;

namespace {

c10::QualifiedName new_name(const c10::QualifiedName& name, const std::string& suffix) {
  // "Net_recals" stays "Net_recals" when it is rewritten again.
  auto base = name.name();
  const auto old = base.find("_recals");
  if (old != std::string::npos) {
    base = base.substr(0, old);
  }
  // Qualified names of unsaved modules carry a mangling ("___torch_mangle_3"), which stays in the prefix.
  return c10::QualifiedName(c10::QualifiedName(name.prefix()), base + suffix);
}

c10::FunctionSchema with_self(const c10::FunctionSchema& schema, const std::string& name, const ClassTypePtr& type) {
  auto arguments = schema.arguments();
  if (!arguments.empty()) {
    arguments[0] = arguments[0].cloneWithType(type);
  }
  return c10::FunctionSchema(name, "", std::move(arguments), schema.returns(), schema.is_vararg(), schema.is_varret());
}

} // namespace

Module retype(
    const Module& module,
    const std::string& suffix,
    const std::function<std::string(const std::string&)>& rename,
    const std::function<bool(const std::string&)>& keep) {
  const auto old = module.type();
  // A unit of its own, which goes when the module does. All scripted modules of a Python process share one that never
  // goes, with every method that was ever added to it.
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  TORCH_CHECK(old->name(), "recals: the module's type has no name");
  const auto name = new_name(*old->name(), suffix);
  auto type = ClassType::create(name, unit, /*is_module=*/true, old->doc_string());
  unit->register_type(type);

  std::vector<c10::IValue> values;
  for (size_t i = 0; i < old->numAttributes(); ++i) {
    if (keep(old->getAttributeName(i))) {
      type->addAttribute(old->getAttributeName(i), old->getAttribute(i), old->is_parameter(i), old->is_buffer(i));
      values.push_back(module._ivalue()->getSlot(i));
    }
  }
  for (size_t i = 0; i < old->numConstants(); ++i) {
    type->addConstant(old->getConstantName(i), old->getConstant(i));
  }
  auto object = c10::ivalue::Object::create(c10::StrongTypePtr(unit, type), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    object->setSlot(i, values[i]);
  }
  Module result(object);

  for (auto* function : old->methods()) {
    const auto new_method = rename(function->name());
    if (new_method.empty()) {
      continue;
    }
    auto graph = torch::jit::toGraphFunction(*function).graph()->copy();
    graph->remapTypes([&](c10::TypePtr candidate) -> c10::TypePtr { return candidate == old ? type : candidate; });
    add_method(result, new_method, graph, with_self(function->getSchema(), new_method, type));
  }
  return result;
}

torch::jit::Function* add_method(
    const Module& module,
    const std::string& name,
    std::shared_ptr<torch::jit::Graph> graph,
    std::optional<c10::FunctionSchema> schema) {
  const auto type = module.type();
  graph->lint();
  auto* function =
      module._ivalue()->compilation_unit()->create_function(c10::QualifiedName(*type->name(), name), std::move(graph));
  if (schema) {
    function->setSchema(std::move(*schema));
  }
  type->addMethod(function);
  return function;
}

} // namespace recals
