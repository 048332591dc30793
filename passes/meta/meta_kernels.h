#pragma once

/// Meta kernels that give what the CPU kernels give, with and without Python; where CUDA gives something else, they follow
/// the device that a tensor stands for.
///
/// Note [Where the meta kernels live]
/// LibTorch lacks many meta kernels. Its Python package brings them, but some of those give other strides than the CPU
/// does (a convolution of a channels-last input, say), and a kernel registered for the meta device would be seen by all of
/// the process: compilers, fake tensors, symbolic sizes. So the kernels of this folder are registered under a dispatch
/// key of their own, between autograd and the devices, which is active only inside a MetaKernels scope and in its thread
/// (the autograd engine carries it along). They take calls on meta tensors; all others go on to their device.
///
/// Note [Devices on meta]
/// A step may use several devices, and what matters is on which of them each byte is. Tensors of the first are on
/// "meta", those of the i-th other on meta:i (runtime/device_table.h). LibTorch carries the index along: a copy from meta:0 to meta:1 copies, a gradient is on the device of
/// what it is the gradient of. Only the allocator does not hear of it. So the two ops that every allocation on meta goes
/// through, empty and empty_strided, tell it which device they were asked for (meta_allocator.h).

#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "runtime/device_table.h"

namespace recals {

/// Nobody else registers anything for it in the versions of torch that are supported.
constexpr auto kMetaKernelsKey = c10::DispatchKey::Fake;

/// While it lives, meta tensors of this thread use the kernels of this folder.
class MetaKernels {
 public:
  /// `devices`: what meta devices stand for; may grow while the scope lives, and must outlive it.
  explicit MetaKernels(const DeviceTable& devices);
  ~MetaKernels();
  MetaKernels(const MetaKernels&) = delete;
  MetaKernels& operator=(const MetaKernels&) = delete;

  /// What a meta device stands for in this thread's innermost scope; the CPU outside of one.
  static c10::Device real(c10::Device device);

 private:
  c10::impl::IncludeDispatchKeyGuard active_;
  const DeviceTable* outer_;
};

} // namespace recals
