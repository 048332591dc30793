#include "passes/meta/composites.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "passes/meta/meta_kernels.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

/// The CPU has no kernel of its own, so its entry in the dispatcher's table is the composite one.
void as_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

bool has_meta_kernel_from_python(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return false;
  }
  // The dispatcher tells where a kernel came from in no other way.
  const auto state = op.dumpState();
  const auto line = state.find("\nMeta: ");
  const auto python = state.find(".py:", line);
  return line != std::string::npos && python < state.find('\n', line + 1);
}

std::vector<std::string> composites_hidden_by_python() {
  std::vector<std::string> names;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.name.compare(0, 6, "aten::") != 0 || op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        !(op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) ||
        !has_meta_kernel_from_python(*op)) {
      continue;
    }
    const auto full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    // What Recals has a kernel for takes another way on meta than on the CPU, whole or composed.
    if (MetaRegistrar::known().count(full) == 0) {
      names.push_back(full);
    }
  }
  return names;
}

} // namespace

CompositesOnMeta::CompositesOnMeta() {
  register_missing_meta_kernels();
  static const auto& names = *new std::vector<std::string>(composites_hidden_by_python());
  if (names.empty()) {
    return;
  }
  library_ = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  for (const auto& name : names) {
    library_->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&as_on_cpu>());
  }
}

CompositesOnMeta::~CompositesOnMeta() = default;

} // namespace recals
