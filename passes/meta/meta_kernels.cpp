#include "passes/meta/meta_kernels.h"

#include <algorithm>

#include <ATen/core/dispatch/Dispatcher.h>

#include "passes/meta/cpp_forms.h"
#include "passes/meta/meta_allocator.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

/// Calls on meta tensors take the kernel, others their device's.
class OnMeta : public c10::OperatorKernel {
 public:
  explicit OnMeta(c10::KernelFunction kernel) : kernel_(std::move(kernel)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (is_on_meta(op, keys, *stack)) {
      kernel_.callBoxed(op, keys, stack);
    } else {
      pass_on(op, keys, kMetaKernelsKey, stack);
    }
  }

 private:
  c10::KernelFunction kernel_;
};

/// empty and empty_strided: the allocator is told the device, which is an argument. Note [Devices on meta]
class Allocating : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto arguments = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    const auto device =
        std::find_if(arguments, stack->end(), [](const c10::IValue& argument) { return argument.isDevice(); });
    const bool on_meta = device != stack->end() && device->toDevice().is_meta();
    const MetaAllocationDevice told(on_meta ? device->toDevice() : c10::Device(c10::kMeta));
    pass_on(op, keys, kMetaKernelsKey, stack);
  }
};

/// Note [Whose key it is]
/// kMetaKernelsKey is a key of torch's that the supported versions declare and do not use. No other one will do: of those
/// between autograd and the kernels of devices, what is below BackendSelect (FPGA, Metal, CustomRNGKeyId) stands for
/// devices, so that the dispatcher fills it with composite kernels, and what is above has fallbacks of torch's. A key can
/// have one fallback. If somebody else takes this one, the second of the two is refused, and so that it is clear what
/// happened when that is Recals, it looks first.
void check_key() {
  auto& dispatcher = c10::Dispatcher::singleton();
  bool taken = dispatcher.hasBackendFallbackForDispatchKey(kMetaKernelsKey);
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    taken = taken || (op && op->hasKernelForDispatchKey(kMetaKernelsKey));
  }
  TORCH_CHECK(
      !taken,
      "recals: somebody else has registered kernels for torch's dispatch key ",
      kMetaKernelsKey,
      ", which recals needs to work out steps without running them. That is so if this torch uses the key for fake "
      "tensors of its own: use a version of torch that recals supports, or a process without the other library.");
}

/// Registers everything; the second call and all later ones do nothing.
void register_kernels() {
  // Never destroyed: destruction would take the kernels away, and at exit other threads may still use them. "used": a
  // pointer that is never read would be left out, and what it points to look lost.
  [[gnu::used]] static auto* libraries = [] {
    check_key();
    // Ops without a kernel here pass through.
    auto* all = new torch::Library(torch::Library::IMPL, "_", kMetaKernelsKey, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFallthrough());
    auto* aten = new torch::Library(torch::Library::IMPL, "aten", kMetaKernelsKey, __FILE__, __LINE__);
    MetaRegistrar registrar(*aten);
    add_attention_kernels(registrar);
    add_convolution_kernels(registrar);
    add_cuda_kernels(registrar);
    add_dropout_kernels(registrar);
    add_embedding_kernels(registrar);
    add_fft_kernels(registrar);
    add_indexing_kernels(registrar);
    add_linear_algebra_kernels(registrar);
    add_loss_kernels(registrar);
    add_norm_kernels(registrar);
    add_padding_kernels(registrar);
    add_pointwise_kernels(registrar);
    add_pooling_kernels(registrar);
    add_quantization_kernels(registrar);
    add_range_kernels(registrar);
    add_reduction_kernels(registrar);
    add_rnn_kernels(registrar);
    add_sampling_kernels(registrar);
    auto taken = registrar.added();
    for (const char* op : {"empty.memory_format", "empty_strided"}) {
      aten->impl(op, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Allocating>()));
      taken.insert(op);
    }
    add_cpp_forms(*aten, taken);
    return new std::pair(all, aten);
  }();
}

c10::DispatchKeySet key_of_kernels() {
  register_kernels();
  return c10::DispatchKeySet(kMetaKernelsKey);
}

} // namespace

void MetaRegistrar::add(const std::string& op, c10::KernelFunction kernel) {
  const auto dot = op.find('.');
  const auto overload = dot == std::string::npos ? std::string() : op.substr(dot + 1);
  if (c10::Dispatcher::singleton().findSchema({"aten::" + op.substr(0, dot), overload})) {
    added_.insert(op);
    library_.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OnMeta>(std::move(kernel))));
  }
}

namespace {
thread_local const DeviceTable* table = nullptr;
} // namespace

MetaKernels::MetaKernels(const DeviceTable& devices) : active_(key_of_kernels()), outer_(table) {
  table = &devices;
}

MetaKernels::~MetaKernels() {
  table = outer_;
}

c10::Device MetaKernels::real(c10::Device device) {
  return table == nullptr ? c10::Device(c10::kCPU) : table->real(device);
}

} // namespace recals
