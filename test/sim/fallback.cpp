#include "test/sim/fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include "test/sim/devices.h"
#include "test/sim/generator.h"
#include "test/sim/memory.h"
#include "test/sim/ordering.h"

// Note [The host's kernels]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// A tensor of a device has its elements in host memory. For a call, each storage of the arguments gets a twin on the
// host that shows the same memory, each tensor a twin on that, and the host's kernel runs on the twins. Afterwards:
//   - a result on a twin's storage is a view, and becomes a tensor of the device on the storage that the twin stands for;
//   - a result on any other storage is new: the device adopts the storage, and counts it from then on;
//   - an argument that was written takes over what the kernel did to the twin beyond its elements: sizes, strides, a
//     larger block of memory, another storage.
// What the kernel allocates and frees meanwhile is nobody's: like a GPU's kernels, the devices' need no memory besides
// their results. So what a step takes on a device is what its tensors take, to the byte.

namespace recals::sim {

namespace {

using torch::jit::Stack;

bool is_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

/// Elsewhere, CPU tensors beside tensors of a device can only be numbers.
bool takes_indices_of_the_host(const c10::OperatorName& op) {
  static const std::unordered_set<std::string> names{
      "aten::index",
      "aten::_unsafe_index",
      "aten::index_put",
      "aten::index_put_",
      "aten::_unsafe_index_put",
      "aten::_index_put_impl_"};
  return names.count(op.name) > 0;
}

bool is_generator(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    return is_generator(optional->getElementType());
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

template <typename F>
void for_each_tensor(const c10::IValue& value, const F& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, visit);
    }
  }
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : op_(op), schema_(op.schema()), stack_(stack), first_(stack.size() - schema_.arguments().size()) {
    find_device();
  }

  void operator()() {
    const c10::DeviceGuard on_the_device(device_);
    std::vector<c10::IValue> arguments(stack_.begin() + static_cast<ptrdiff_t>(first_), stack_.end());
    for (size_t i = 0; i < arguments.size(); ++i) {
      stack_[first_ + i] = twin(arguments[i], schema_.arguments()[i]);
    }
    const std::vector<c10::IValue> twins(stack_.begin() + static_cast<ptrdiff_t>(first_), stack_.end());
    run();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (written(schema_.arguments()[i])) {
        take_over(arguments[i], twins[i]);
      }
    }
    const auto& returns = schema_.returns();
    const size_t first_result = stack_.size() - returns.size();
    for (size_t r = 0; r < returns.size(); ++r) {
      auto& result = stack_[first_result + r];
      const auto* same = written(returns[r]) ? argument_of(returns[r], arguments) : nullptr;
      result = same != nullptr ? *same : of_device(result);
    }
    note(arguments, first_result);
  }

 private:
  /// The launch, unless nothing was done but to look at memory in another way.
  void note(const std::vector<c10::IValue>& arguments, size_t first_result) {
    if (op_.hasTag(at::Tag::inplace_view)) {
      return;
    }
    std::vector<Uses*> read;
    std::vector<Uses*> written_to;
    const auto add = [](std::vector<Uses*>& uses) {
      return [&uses](const at::Tensor& tensor) {
        auto* of_tensor = is_sim(tensor) ? uses_of(tensor.storage().data_ptr()) : nullptr;
        if (of_tensor != nullptr && std::find(uses.begin(), uses.end(), of_tensor) == uses.end()) {
          uses.push_back(of_tensor);
        }
      };
    };
    bool only_looks = !schema_.returns().empty();
    for (size_t r = 0; r < schema_.returns().size(); ++r) {
      const auto* alias = schema_.returns()[r].alias_info();
      only_looks = only_looks && alias != nullptr && !alias->isWrite();
      if (alias == nullptr) {
        for_each_tensor(stack_[first_result + r], add(written_to));
      }
    }
    if (only_looks) {
      return;
    }
    for (size_t i = 0; i < arguments.size(); ++i) {
      for_each_tensor(arguments[i], add(written(schema_.arguments()[i]) ? written_to : read));
    }
    const auto name = c10::toString(op_.operator_name());
    std::optional<c10::DeviceIndex> peer; // of a copy: it runs on the source's device
    for (const auto& argument : arguments) {
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (is_sim(tensor) && tensor.device() != device_) {
          peer = tensor.device().index();
        }
      });
    }
    if (peer) {
      join_streams(device_.index(), *peer);
    }
    note_launch(peer.value_or(device_.index()), name, read, written_to);
    if (peer) {
      join_streams(device_.index(), *peer);
    }
    if (gives_to_host(arguments, first_result)) {
      host_waits(current_stream(device_.index()));
    }
  }

  /// A number, or a copy to the host, is there when the call returns.
  bool gives_to_host(const std::vector<c10::IValue>& arguments, size_t first_result) const {
    if (op_.operator_name().name == "aten::copy_") {
      return arguments[0].toTensor().is_cpu();
    }
    return std::any_of(
        stack_.begin() + static_cast<ptrdiff_t>(first_result), stack_.end(), [](const c10::IValue& value) {
          return value.isScalar() || value.isBool();
        });
  }

  void find_device() {
    std::optional<c10::Device> found;
    const auto refuse = [&](c10::Device other) {
      TORCH_CHECK(false, "sim: ", op_.operator_name(), " was called with tensors of ", device_, " and of ", other);
    };
    for (size_t i = first_; i < stack_.size(); ++i) {
      if (stack_[i].isDevice()) {
        found = stack_[i].toDevice();
      }
      for_each_tensor(stack_[i], [&](const at::Tensor& tensor) {
        if (!found && is_sim(tensor)) {
          found = tensor.device();
        }
      });
    }
    device_ = found ? checked(*found) : c10::Device(kSim, current_device());
    const bool copies = op_.operator_name().name == "aten::copy_";
    const bool host_too = copies || takes_indices_of_the_host(op_.operator_name());
    for (size_t i = first_; i < stack_.size(); ++i) {
      for_each_tensor(stack_[i], [&](const at::Tensor& tensor) {
        if (is_sim(tensor) ? tensor.device() != device_ && !copies
                           : tensor.defined() && tensor.dim() != 0 && !host_too) {
          refuse(tensor.device());
        }
      });
    }
  }

  void run() {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const Unheard unheard;
    op_.callBoxed(&stack_);
    draw_.reset();
  }

  c10::IValue twin(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      return twin(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) {
        list.push_back(twin(tensor));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        list.push_back(tensor ? std::optional(twin(*tensor)) : std::nullopt);
      }
      return list;
    }
    if (value.isStorage()) {
      auto storage = value.toStorage();
      return storage.device_type() == kSim ? c10::IValue(twin(storage)) : value;
    }
    if (value.isDevice()) {
      return c10::Device(c10::kCPU);
    }
    if (is_generator(argument.type())) {
      const auto generator = value.isNone() ? default_generator(device_.index()) : value.toGenerator();
      TORCH_CHECK(
          generator.device() == device_,
          "sim: ",
          op_.operator_name(),
          " on ",
          device_,
          " cannot draw from a generator of ",
          generator.device());
      draw_.emplace(generator);
      return draw_->host();
    }
    return value;
  }

  const c10::Storage& twin(const c10::Storage& storage) {
    auto& twin = twins_[storage.unsafeGetStorageImpl()];
    if (!twin.host) {
      twin.device = storage;
      twin.data = storage.mutable_data();
      twin.host = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          storage.nbytes(),
          c10::DataPtr(twin.data, c10::Device(c10::kCPU)),
          c10::GetAllocator(c10::kCPU),
          /*resizable=*/true);
      stands_for_[twin.host.unsafeGetStorageImpl()] = storage;
    }
    return twin.host;
  }

  at::Tensor twin(const at::Tensor& tensor) {
    if (!is_sim(tensor)) {
      return tensor;
    }
    return shown(c10::Storage(twin(tensor.storage())), c10::DispatchKey::CPU, tensor);
  }

  /// What `like` shows of its storage, on another one.
  static at::Tensor shown(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    tensor._set_conj(like.is_conj());
    tensor._set_neg(like.is_neg());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    return tensor;
  }

  /// The device's storage for one that a host's kernel returned or left in a twin.
  c10::Storage of_device(const c10::Storage& host) {
    auto& storage = stands_for_[host.unsafeGetStorageImpl()];
    if (!storage) {
      storage = adopt(host, device_);
    }
    return storage;
  }

  at::Tensor of_device(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    return shown(of_device(tensor.storage()), c10::DispatchKey::PrivateUse1, tensor);
  }

  c10::IValue of_device(const c10::IValue& value) {
    if (value.isTensor()) {
      return of_device(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) {
        list.push_back(of_device(tensor));
      }
      return list;
    }
    return value;
  }

  void take_over(const c10::IValue& argument, const c10::IValue& twin) {
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> twins;
    for_each_tensor(argument, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    for_each_tensor(twin, [&](const at::Tensor& tensor) { twins.push_back(tensor); });
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (is_sim(tensors[i])) {
        take_over(tensors[i], twins[i]);
      }
    }
  }

  void take_over(const at::Tensor& tensor, const at::Tensor& twin) {
    auto storage = of_device(twin.storage());
    const auto known = twins_.find(storage.unsafeGetStorageImpl());
    if (known != twins_.end() && known->second.host.data() != known->second.data) {
      // The kernel needed more memory. The twin owns it; the storage that it stands for takes it.
      auto grown = adopt(known->second.host, tensor.device());
      storage.set_data_ptr_noswap(grown.set_data_ptr(c10::DataPtr(nullptr, tensor.device())));
      storage.set_nbytes(known->second.host.nbytes());
      known->second.data = known->second.host.mutable_data();
    }
    auto* impl = tensor.unsafeGetTensorImpl();
    if (!storage.is_alias_of(tensor.storage())) {
      impl->set_storage_keep_dtype(storage);
    }
    if (tensor.sizes() != twin.sizes() || tensor.strides() != twin.strides() ||
        tensor.storage_offset() != twin.storage_offset()) {
      impl->set_sizes_and_strides(twin.sizes(), twin.strides(), twin.storage_offset());
    }
  }

  const c10::IValue* argument_of(const c10::Argument& result, const std::vector<c10::IValue>& arguments) const {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = schema_.arguments()[i].alias_info();
      if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
        return &arguments[i];
      }
    }
    return nullptr;
  }

  struct Twin {
    c10::Storage device;
    c10::Storage host;
    void* data = nullptr; ///< of both, as long as the kernel leaves it so
  };

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack& stack_;
  size_t first_; ///< argument on the stack
  c10::Device device_ = c10::Device(kSim, 0);
  std::optional<Draw> draw_;
  std::unordered_map<const c10::StorageImpl*, Twin> twins_; ///< by the device's storage
  std::unordered_map<const c10::StorageImpl*, c10::Storage> stands_for_; ///< by the host's
};

} // namespace

void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  Call(op, *stack)();
}

} // namespace recals::sim
