#pragma once

/// A module with meta tensors in place of its own: same types, same sharing, no data.

#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace recals {

struct MetaTwin {
  c10::IValue value;
  /// Where the tensor that a meta tensor stands for lives.
  std::unordered_map<const c10::TensorImpl*, c10::Device> devices;
  /// The tensor that a meta tensor stands for.
  std::unordered_map<const c10::TensorImpl*, at::Tensor> originals;
  /// Dotted path of each object of the twin, "" for the root.
  std::unordered_map<const c10::ivalue::Object*, std::string> paths;
};

/// `value`: a module object, or any inputs. Tensors that require grad get a `.grad` of their own, as after the first
/// step. Throws if it holds something that is neither data nor a scripted module.
MetaTwin meta_twin(const c10::IValue& value);

/// The same for the arguments of a call, except that a tensor which is passed twice has two twins: another call may pass
/// two.
MetaTwin meta_twin_of_arguments(const std::vector<c10::IValue>& arguments);

} // namespace recals
