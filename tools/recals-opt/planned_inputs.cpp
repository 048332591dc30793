#include "tools/recals-opt/planned_inputs.h"

#include "passes/lower/lower.h"
#include "runtime/describe.h"
#include "tools/recals-opt/errors.h"
#include "tools/recals-opt/input_spec.h"

namespace recals::opt {

std::vector<c10::IValue> inputs_or_planned(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<std::string>& texts) {
  const auto found = module.find_method(method);
  if (!found) {
    throw BadInput("the module has no method '" + method + "'");
  }
  const auto& schema = found->function().getSchema();
  if (!texts.empty() || !is_lowered(module) || lowered_step(module).method != method) {
    return arguments_of(schema, texts);
  }
  std::vector<c10::TypePtr> types;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    types.push_back(schema.arguments()[i].type());
  }
  const auto step = parse_step(lowered_step(module).signature);
  if (step.autocast) {
    step.autocast->set();
  }
  if (step.backend) {
    step.backend->set();
  }
  const auto planned =
      value_of(step.inputs, c10::TupleType::create(std::move(types)), "the plan's inputs of " + method);
  return planned.toTupleRef().elements().vec();
}

} // namespace recals::opt
