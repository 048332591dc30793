#include "passes/meta/autocast.h"

#include <unordered_map>
#include <unordered_set>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "passes/meta/cpp_forms.h"
#include "passes/meta/meta_kernels.h"

namespace recals {

namespace {

namespace autocast = at::autocast;
using torch::jit::Stack;

/// Above autograd, as autocast itself, so that casts have a gradient. Nobody else registers anything for it.
constexpr auto kAutocastOnMetaKey = c10::DispatchKey::DeferredInit;

enum class Policy : uint8_t { None, Lower, Float, Promote };

/// The lists are those of torch's ATen/autocast_mode; what has an autocast kernel and is in neither computes in float.
const std::unordered_set<std::string>& lower_precision() {
  static const auto& names = *new std::unordered_set<std::string>{
      "_addmm_activation",
      "_convolution",
      "_cudnn_rnn",
      "_native_multi_head_attention",
      "_scaled_dot_product_flash_attention",
      "_thnn_fused_gru_cell",
      "_thnn_fused_lstm_cell",
      "addbmm",
      "addmm",
      "addmv",
      "addr",
      "baddbmm",
      "bmm",
      "chain_matmul",
      "conv1d",
      "conv2d",
      "conv3d",
      "conv_tbc",
      "conv_transpose1d",
      "conv_transpose2d",
      "conv_transpose3d",
      "convolution",
      "cudnn_convolution",
      "cudnn_convolution_transpose",
      "einsum",
      "gru_cell",
      "linalg_multi_dot",
      "linalg_vecdot",
      "linear",
      "lstm_cell",
      "matmul",
      "mkldnn_rnn_layer",
      "mm",
      "mv",
      "prelu",
      "rnn_relu_cell",
      "rnn_tanh_cell",
      "scaled_dot_product_attention",
  };
  return names;
}

const std::unordered_set<std::string>& widest() {
  static const auto& names = *new std::unordered_set<std::string>{
      "addcdiv",
      "addcmul",
      "atan2",
      "bilinear",
      "cat",
      "cross",
      "dot",
      "index_copy",
      "index_put",
      "scatter_add",
      "stack",
      "tensordot",
      "vdot",
  };
  return names;
}

c10::DispatchKey autocast_key(c10::DeviceType device) {
  return device == c10::kCUDA ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
}

Policy policy_of(const c10::OperatorHandle& op, c10::DeviceType device) {
  if (!op.hasKernelForDispatchKey(autocast_key(device))) {
    return Policy::None;
  }
  const auto name = op.operator_name().name.substr(6);
  if (lower_precision().count(name) > 0) {
    return Policy::Lower;
  }
  const bool promotes = widest().count(name) > 0 || (name == "grid_sampler" && device == c10::kCUDA);
  return promotes ? Policy::Promote : Policy::Float;
}

/// Those whose policies are known; what stands for another device is not cast.
constexpr std::array<c10::DeviceType, 2> kDevices{c10::kCPU, c10::kCUDA};

/// What the scope of this thread knows.
struct Scope {
  std::unordered_map<c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> casts; ///< parameter, its cast
};
thread_local std::optional<Scope> scope;

bool may_cast(const at::Tensor& tensor, c10::DeviceType device) {
  return tensor.defined() && tensor.is_meta() && MetaKernels::real(tensor.device()).type() == device &&
      tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType type, c10::DeviceType device) {
  if (!may_cast(tensor, device) || tensor.scalar_type() == type) {
    return tensor;
  }
  const bool cacheable = autocast::is_autocast_cache_enabled() && type == autocast::get_autocast_dtype(device) &&
      tensor.scalar_type() == at::kFloat && tensor.requires_grad() && tensor.is_leaf() && !tensor.is_view();
  if (!cacheable) {
    return tensor.to(type);
  }
  auto [known, is_new] = scope->casts.try_emplace(tensor.unsafeGetTensorImpl(), tensor, at::Tensor());
  if (is_new) {
    known->second.second = tensor.to(type);
  }
  return known->second.second;
}

template <typename Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      visit(tensor);
    }
  }
}

c10::IValue cast(const c10::IValue& value, at::ScalarType type, c10::DeviceType device) {
  if (value.isTensor()) {
    return cast(value.toTensor(), type, device);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) {
      tensors.push_back(cast(tensor, type, device));
    }
    return tensors;
  }
  return value;
}

/// Softmax and sums of CUDA take the dtype that they compute in as an argument.
c10::IValue* dtype_argument(const c10::OperatorHandle& op, c10::IValue* first) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dtype" && first[i].isNone()) {
      return first + i;
    }
  }
  return nullptr;
}

class Casting : public c10::OperatorKernel {
 public:
  explicit Casting(const c10::OperatorHandle& op) : cpu_(policy_of(op, c10::kCPU)), cuda_(policy_of(op, c10::kCUDA)) {}

  bool casts() const {
    return cpu_ != Policy::None || cuda_ != Policy::None;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard inside(kAutocastOnMetaKey);
    if (scope) {
      const auto device = device_of(op, *stack);
      if (autocast::is_autocast_enabled(device)) {
        cast_arguments(op, *stack, device);
      }
    }
    pass_on(op, keys, kAutocastOnMetaKey, stack);
  }

 private:
  /// As in torch, CUDA's autocast comes before the CPU's.
  static c10::DeviceType device_of(const c10::OperatorHandle& op, const Stack& stack) {
    auto device = c10::kCPU;
    for (auto argument = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
         argument != stack.end();
         ++argument) {
      each_tensor(*argument, [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.is_meta() && !MetaKernels::real(tensor.device()).is_cpu()) {
          device = MetaKernels::real(tensor.device()).type();
        }
      });
    }
    return device;
  }

  void cast_arguments(const c10::OperatorHandle& op, Stack& stack, c10::DeviceType device) const {
    const auto count = op.schema().arguments().size();
    auto* first = stack.data() + (stack.size() - count);
    const auto policy = device == c10::kCUDA ? cuda_ : device == c10::kCPU ? cpu_ : Policy::None;
    auto type = at::kFloat;
    if (policy == Policy::None) {
      return;
    }
    if (policy == Policy::Float) {
      if (auto* dtype = device == c10::kCUDA ? dtype_argument(op, first) : nullptr) {
        *dtype = at::kFloat;
        return;
      }
    } else {
      type = autocast::get_autocast_dtype(device);
    }
    if (policy == Policy::Promote) {
      for (size_t i = 0; i < count; ++i) {
        each_tensor(first[i], [&](const at::Tensor& tensor) {
          if (may_cast(tensor, device)) {
            type = c10::promoteTypes(type, tensor.scalar_type());
          }
        });
      }
    }
    for (size_t i = 0; i < count; ++i) {
      first[i] = cast(first[i], type, device);
    }
  }

  const Policy cpu_;
  const Policy cuda_;
};

/// Registers everything; the second call and all later ones do nothing.
c10::DispatchKeySet key() {
  [[gnu::used]] static auto* libraries = [] {
    auto* all = new torch::Library(torch::Library::IMPL, "_", kAutocastOnMetaKey, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFallthrough());
    auto* aten = new torch::Library(torch::Library::IMPL, "aten", kAutocastOnMetaKey, __FILE__, __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || name.name.rfind("aten::", 0) != 0) {
        continue;
      }
      auto casting = std::make_unique<Casting>(*op);
      if (casting->casts()) {
        aten->impl(short_name(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(casting)));
      }
    }
    return new std::pair(all, aten);
  }();
  return c10::DispatchKeySet(kAutocastOnMetaKey);
}

} // namespace

AutocastOnMeta::AutocastOnMeta() : active_(key()) {
  TORCH_CHECK(!scope, "recals: autocast on meta inside itself");
  scope.emplace();
  for (size_t i = 0; i < kDevices.size(); ++i) {
    enabled_[i] = autocast::is_autocast_enabled(kDevices[i]);
  }
}

AutocastOnMeta::~AutocastOnMeta() {
  scope.reset();
  for (size_t i = 0; i < kDevices.size(); ++i) {
    autocast::set_autocast_enabled(kDevices[i], enabled_[i]);
  }
}

at::Tensor AutocastOnMeta::lowered(const at::Tensor& tensor) {
  const auto device = MetaKernels::real(tensor.device()).type();
  const bool casts = scope && autocast::is_autocast_enabled(device);
  return casts ? cast(tensor, autocast::get_autocast_dtype(device), device) : tensor;
}

std::vector<at::Tensor> AutocastOnMeta::cached() {
  std::vector<at::Tensor> casts;
  for (const auto& [parameter, pair] : scope->casts) {
    casts.push_back(pair.second);
  }
  return casts;
}

void AutocastOnMeta::leave_block() {
  scope->casts.clear();
  for (const auto device : kDevices) {
    autocast::set_autocast_enabled(device, false);
  }
}

} // namespace recals
