#pragma once

/// A module with meta tensors in place of its own: same types, same sharing, no data.

#include <optional>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "runtime/device_table.h"

namespace recals {

struct MetaTwin {
  c10::IValue value;
  /// The tensor that a meta tensor stands for.
  std::unordered_map<const c10::TensorImpl*, at::Tensor> originals;
  /// Dotted path of each object of the twin, "" for the root.
  std::unordered_map<const c10::ivalue::Object*, std::string> paths;
};

/// `value`: a module object, or any inputs. Tensors that require grad get a `.grad` of their own, as after the first
/// step. Throws if it holds something that is neither data nor a scripted module.
///
/// `devices`: the tensors' ones are added; the twins are on what stands for them. A tensor without data is taken to be on the
/// CPU. `target`: where all of them are taken to be instead; throws if they are on several devices then.
/// Needs a MetaKernels scope over `devices`.
MetaTwin meta_twin(const c10::IValue& value, DeviceTable& devices, std::optional<c10::Device> target = std::nullopt);

/// The same for the arguments of a call, except that a tensor which is passed twice has two twins: another call may pass
/// two.
MetaTwin meta_twin_of_arguments(
    const std::vector<c10::IValue>& arguments,
    DeviceTable& devices,
    std::optional<c10::Device> target = std::nullopt);

} // namespace recals
