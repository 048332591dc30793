#include "runtime/forward_state.h"

#include <utility>

namespace recals {

namespace {

using c10::DispatchKey;

/// The modes that make an op of a thread pass through a transform. Tensors have keys besides; those of a forward outside of
/// transforms have none.
constexpr c10::DispatchKeySet kTransforms({
    DispatchKey::FuncTorchDynamicLayerFrontMode,
    DispatchKey::FuncTorchDynamicLayerBackMode,
    DispatchKey::FuncTorchGradWrapper,
    DispatchKey::FuncTorchVmapMode,
    DispatchKey::VmapMode,
});

} // namespace

c10::DispatchKeySet ForwardState::transforms_now() {
  return c10::impl::tls_local_dispatch_key_set().included_ & kTransforms;
}

ModeGuard::ModeGuard(const ForwardState& forward) {
  if (c10::InferenceMode::is_enabled()) {
    no_inference_.emplace(false);
  }
  const auto entered = ForwardState::transforms_now() - forward.transforms;
  if (entered.empty()) {
    return;
  }
  outer_keys_ = c10::impl::tls_local_dispatch_key_set();
  auto keys = *outer_keys_;
  keys.included_ = keys.included_ - entered;
  c10::impl::_force_tls_local_dispatch_key_set(keys);
  if (forward.transforms.empty()) {
    // Custom autograd functions ask the stack of transforms itself.
    outer_transforms_ = std::exchange(at::functorch::functorchTLSAccessor(), nullptr);
  }
}

ModeGuard::~ModeGuard() {
  if (outer_transforms_) {
    at::functorch::functorchTLSAccessor() = std::move(outer_transforms_);
  }
  if (outer_keys_) {
    c10::impl::_force_tls_local_dispatch_key_set(*outer_keys_);
  }
}

ForwardStateGuard::ForwardStateGuard(const ForwardState& forward)
    : autocast_(forward.autocast), backend_(forward.backend) {
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  if (!hooks.stack.empty()) {
    outer_hooks_ = hooks;
    at::SavedTensorDefaultHooks::set_tls_state({});
  }
}

ForwardStateGuard::~ForwardStateGuard() {
  if (outer_hooks_) {
    at::SavedTensorDefaultHooks::set_tls_state(*outer_hooks_);
  }
}

} // namespace recals
