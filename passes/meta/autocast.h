#pragma once

/// Autocast of other devices, on meta tensors.
///
/// Autocast casts what is on its device, hence nothing on meta. Inside an AutocastOnMeta scope (and a MetaKernels scope,
/// which knows the devices), ops on meta tensors cast their arguments as those of the device would that they stand for, if
/// autocast is enabled for it in this thread at that moment. As in torch, casts of parameters are cached.

#include <array>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace recals {

class AutocastOnMeta {
 public:
  /// Scopes do not nest.
  AutocastOnMeta();
  ~AutocastOnMeta();
  AutocastOnMeta(const AutocastOnMeta&) = delete;
  AutocastOnMeta& operator=(const AutocastOnMeta&) = delete;

  /// For what stands in for an op that autocast computes in lower precision: an argument of it, cast if the scope of this
  /// thread casts.
  static at::Tensor lowered(const at::Tensor& tensor);

  /// Casts of parameters, which stay until the block is left.
  static std::vector<at::Tensor> cached();

  /// What leaving the autocast block does: cached casts go, and nothing casts until the scope ends.
  void leave_block();

 private:
  c10::impl::IncludeDispatchKeyGuard active_;
  std::array<bool, 2> enabled_; ///< by kind of device, before the scope
};

} // namespace recals
