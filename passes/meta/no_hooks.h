#pragma once

/// Hooks on saved tensors that a user has put around the call (torch.autograd.graph.save_on_cpu, say) are for tensors with
/// data, not for those of the analysis.

#include <ATen/SavedTensorHooks.h>

namespace recals {

/// While it lives, what this thread saves goes to no hooks.
class NoSavedTensorHooks {
 public:
  NoSavedTensorHooks() : outer_(at::SavedTensorDefaultHooks::get_tls_state()) {
    auto none = outer_;
    none.stack = {};
    at::SavedTensorDefaultHooks::set_tls_state(none);
  }
  ~NoSavedTensorHooks() {
    at::SavedTensorDefaultHooks::set_tls_state(outer_);
  }
  NoSavedTensorHooks(const NoSavedTensorHooks&) = delete;
  NoSavedTensorHooks& operator=(const NoSavedTensorHooks&) = delete;

 private:
  const at::impl::SavedTensorDefaultHooksTLS outer_;
};

} // namespace recals
