#pragma once

/// A kernel call without its tensors: what decides how much memory the kernel takes, so that the same call can be told
/// again, and made again with other numbers.
///
/// Note [Distinct calls]
/// A step of a thousand kernel calls has far fewer distinct ones: blocks repeat. Two calls are the same if op, sizes,
/// strides, dtypes and numbers are, and what kernels ask of the process: switches and CallState. Where an op has a CPU
/// kernel of its own, the autograd graph around the call does not matter to it; a composite op and one that writes in
/// place may ask which tensors require grad, so for those this belongs to the call.

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>

#include "runtime/checksum.h"

namespace recals {

/// Over all that a call is told by; the same in every process, so that it can be written to a file.
using CallKey = Checksum;

struct CallKeyHash {
  size_t operator()(const CallKey& key) const {
    return key.one;
  }
};

/// How a tensor shows its storage; without sizes and of dtype Undefined for one that is not defined.
struct Layout {
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0; ///< elements
  int64_t storage_bytes = 0;

  explicit Layout(const at::Tensor& tensor);
};

/// A tensor that the call was given.
struct Operand {
  Layout layout;
  int storage = 0; ///< operands with the same number share one
  bool written = false;
  bool requires_grad = false;
  bool leaf = true;
  bool conjugated = false;
  bool negated = false;
  bool number = false; ///< wraps a number, so it has a say in result dtypes only within its kind
};

struct CallArgument {
  enum class Kind : uint8_t { Constant, Tensor, TensorList, OptionalTensorList };
  Kind kind = Kind::Constant;
  c10::IValue constant;
  std::vector<int> operands; ///< into CallSpec::operands; -1: none there
};

/// What kernels ask besides their arguments and the switches of backends.
struct CallState {
  bool grad_mode = false;
  bool autocast = false; ///< of the CPU
  bool autocast_cache = false;
  c10::ScalarType autocast_dtype = c10::kFloat;

  static CallState current();
};

struct CallSpec {
  c10::OperatorName op{"", ""};
  std::vector<CallArgument> arguments;
  std::vector<Operand> operands;
  CallState state;
  int64_t result_bytes = 0; ///< of the storages of the tensors that it returns
  CallKey key;
};

/// Is it a form that is given its outputs (out=)?
bool writes_into_outputs(const c10::FunctionSchema& schema);

/// `inputs`, `outputs`: as a RecordFunction shows them, on meta or not. `switches`: BackendState::checksum. Nothing for a
/// call that cannot be made again from sizes alone (sparse tensors, objects) or must not be (collectives).
std::optional<CallSpec> spec_of(
    const c10::OperatorName& op,
    const std::vector<c10::IValue>& inputs,
    const std::vector<c10::IValue>& outputs,
    const Checksum& switches);

/// The tensors in `values`, in their order, those in lists too.
std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& values);

} // namespace recals
