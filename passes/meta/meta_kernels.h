#pragma once

/// Meta kernels that give what the CPU kernels give, with and without Python; where CUDA gives something else, they follow
/// the device that the scope stands for.
///
/// Note [Where the meta kernels live]
/// LibTorch lacks many meta kernels. Its Python package brings them, but some of those give other strides than the CPU
/// does (a convolution of a channels-last input, say), and a kernel registered for the meta device would be seen by all of
/// the process: compilers, fake tensors, symbolic sizes. So the kernels of this folder are registered under a dispatch
/// key of their own, between autograd and the devices, which is active only inside a MetaKernels scope and in its thread
/// (the autograd engine carries it along). They take calls on meta tensors; all others go on to their device.

#include <c10/core/DeviceType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace recals {

/// Nobody else registers anything for it in the versions of torch that are supported.
constexpr auto kMetaKernelsKey = c10::DispatchKey::Fake;

/// While it lives, meta tensors of this thread use the kernels of this folder.
class MetaKernels {
 public:
  explicit MetaKernels(c10::DeviceType device = c10::kCPU);
  ~MetaKernels();
  MetaKernels(const MetaKernels&) = delete;
  MetaKernels& operator=(const MetaKernels&) = delete;

  /// Of this thread's innermost scope.
  static c10::DeviceType device();

 private:
  c10::impl::IncludeDispatchKeyGuard active_;
  c10::DeviceType outer_;
};

} // namespace recals
