#pragma once

/// What the caller of the method does with its outputs, between forward and backward of a dry run.

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "runtime/device_table.h"

namespace recals {

/// For the tensors that a loss reads beside the outputs (targets, weights of classes), which belong to the caller: each
/// has one on meta that is not counted.
class LossStandIns {
 public:
  /// `target`: the device that the caller's tensors stand for, instead of the one that they are on.
  LossStandIns(const DeviceTable& devices, std::optional<c10::Device> target) : devices_(devices), target_(target) {}

  /// Throws c10::Error for a tensor on a device that the step does not use.
  at::Tensor of(const at::Tensor& tensor);
  c10::Device of(c10::Device device) const;

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> original; ///< an address may be used again
    at::Tensor stand_in;
  };

  const DeviceTable devices_;
  const std::optional<c10::Device> target_;
  std::unordered_map<const c10::TensorImpl*, Known> known_;
};

/// A loss that the caller gives: of what the method returns, on meta. Its allocations on meta are counted. Throws c10::Error.
using LossFunction = std::function<at::Tensor(const c10::IValue& result, const std::shared_ptr<LossStandIns>& others)>;

struct Loss {
  LossFunction function; ///< null: a stand-in, the envelope of the usual losses (docs/memory-model.md)
  c10::IValue result; ///< what the method returns; its tensors, in order, are the outputs
  std::optional<c10::Device> target; ///< of LossStandIns
};

/// The loss of `outputs`, one element that requires grad. Throws c10::Error where there is none.
class LossOf {
 public:
  /// Before anything is counted: the targets of the stand-in, which belong to the caller.
  LossOf(const Loss& loss, const std::vector<at::Tensor>& outputs, const DeviceTable& devices);
  at::Tensor operator()();

 private:
  at::Tensor given() const;
  at::Tensor envelope() const;

  const Loss& loss_;
  const std::vector<at::Tensor>& outputs_;
  const DeviceTable& devices_;
  std::vector<at::Tensor> targets_; ///< per output; undefined: none
  at::Tensor numbers_;
};

} // namespace recals
