#pragma once

/// The state of a thread in which a forward ran, for its replays: what decides, besides their inputs, which kernels ops run.

#include <memory>
#include <optional>

#include <ATen/FuncTorchTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "runtime/autocast_state.h"
#include "runtime/backend_state.h"

namespace recals {

struct ForwardState {
  AutocastState autocast = AutocastState::current();
  BackendState backend = BackendState::current();
  /// Function transforms (vmap, jvp, ...) of the thread take part in its ops by these.
  c10::DispatchKeySet transforms = transforms_now();

  static c10::DispatchKeySet transforms_now();
};

/// Leaves the modes that the backward is in and the forward was not: function transforms (what the forward has left is no
/// batch, and numbers are drawn again as it drew them) and inference mode.
class ModeGuard {
 public:
  explicit ModeGuard(const ForwardState& forward);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  std::optional<c10::InferenceMode> no_inference_;
  std::optional<c10::impl::LocalDispatchKeySet> outer_keys_; ///< nothing if there is no transform to leave
  std::unique_ptr<at::functorch::FuncTorchTLSBase> outer_transforms_;
};

/// Ops run as they did in the forward, except that grad mode is off, that no cast of a weight is cached, and that nobody's
/// hooks are put on what they save.
class ForwardStateGuard {
 public:
  explicit ForwardStateGuard(const ForwardState& forward);
  ~ForwardStateGuard();
  ForwardStateGuard(const ForwardStateGuard&) = delete;
  ForwardStateGuard& operator=(const ForwardStateGuard&) = delete;

 private:
  at::NoGradGuard no_grad_;
  AutocastGuard autocast_;
  BackendGuard backend_;
  std::optional<at::impl::SavedTensorDefaultHooksTLS> outer_hooks_; ///< nothing if there are none
};

} // namespace recals
