#include "passes/measure/measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include "runtime/autocast_state.h"
#include "runtime/memory_tracker.h"
#include "runtime/rng_state.h"

namespace recals {

namespace {

/// Pages that read as zeros and take no memory as long as nobody writes to them.
class ZeroPages {
 public:
  explicit ZeroPages(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
    begin_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(begin_ != MAP_FAILED, "recals: no address space for ", bytes, " bytes");
  }
  ~ZeroPages() {
    munmap(begin_, bytes_);
  }
  ZeroPages(const ZeroPages&) = delete;
  ZeroPages& operator=(const ZeroPages&) = delete;

  void* begin() const {
    return begin_;
  }

 private:
  size_t bytes_;
  void* begin_ = nullptr;
};

class Silent : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

/// The state of the call, and the caller's again when the scope ends.
class StateGuard {
 public:
  explicit StateGuard(const CallState& state) : grad_mode_(state.grad_mode), outer_(AutocastState::current()) {
    at::autocast::set_autocast_enabled(c10::kCPU, state.autocast);
    if (state.autocast) {
      at::autocast::set_autocast_dtype(c10::kCPU, state.autocast_dtype);
      at::autocast::set_autocast_cache_enabled(state.autocast_cache);
    }
  }
  ~StateGuard() {
    outer_.set();
  }
  StateGuard(const StateGuard&) = delete;
  StateGuard& operator=(const StateGuard&) = delete;

 private:
  at::AutoGradMode grad_mode_;
  AutocastState outer_;
};

/// Numbers that most kernels take: between 0 and 1, with a diagonal that makes square matrices regular; of integers, zeros,
/// which are places in everything that is not empty.
void fill(at::Tensor& tensor) {
  if (!tensor.is_floating_point() && !tensor.is_complex()) {
    tensor.zero_();
    return;
  }
  tensor.uniform_(0.1, 1.0);
  if (tensor.dim() >= 2 && tensor.size(-1) == tensor.size(-2)) {
    tensor.diagonal(0, -2, -1).add_(static_cast<double>(tensor.size(-1)));
  }
}

/// The tensors of one call.
class Operands {
 public:
  /// `pages`: null for numbers in place of zeros.
  Operands(const CallSpec& call, const ZeroPages* pages) {
    at::NoGradGuard no_grad;
    std::map<int, bool> written;
    for (const auto& operand : call.operands) {
      written[operand.storage] = written[operand.storage] || operand.written;
    }
    for (const auto& operand : call.operands) {
      const bool own = pages == nullptr || written[operand.storage];
      tensors_.push_back(own ? in_memory(operand) : on_pages(operand, *pages));
    }
  }

  /// As the call is to be given it: with the place in an autograd graph that it had.
  at::Tensor get(const CallSpec& call, int number) const {
    if (number < 0) {
      return {};
    }
    const auto& operand = call.operands[number];
    auto tensor = tensors_[number].detach();
    if (operand.conjugated || operand.negated) {
      tensor._set_conj(operand.conjugated);
      tensor._set_neg(operand.negated);
    }
    if (operand.number) {
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    if (operand.requires_grad) {
      tensor.requires_grad_();
      at::AutoGradMode grad_mode(true);
      if (!operand.leaf || operand.written) {
        // A leaf may not be written in place. A copy may; it is small next to what the kernel does.
        tensor = operand.written ? tensor.clone(at::MemoryFormat::Preserve) : at::alias(tensor);
      }
    }
    return tensor;
  }

 private:
  at::Tensor in_memory(const Operand& operand) {
    auto& storage = storages_[operand.storage];
    if (!storage.defined()) {
      storage = at::zeros({std::max<int64_t>(operand.layout.storage_bytes, 1)}, at::kByte);
    }
    auto tensor = at::empty({0}, at::TensorOptions().dtype(operand.layout.dtype));
    tensor.set_(storage.storage(), operand.layout.offset, operand.layout.sizes, operand.layout.strides);
    if (tensor.numel() > 0 && tensor.is_non_overlapping_and_dense()) {
      fill(tensor);
    }
    return tensor;
  }

  static at::Tensor on_pages(const Operand& operand, const ZeroPages& pages) {
    const auto options = at::TensorOptions().dtype(operand.layout.dtype);
    const auto offset = operand.layout.offset * static_cast<int64_t>(c10::elementSize(operand.layout.dtype));
    return at::from_blob(
        static_cast<char*>(pages.begin()) + offset, operand.layout.sizes, operand.layout.strides, options);
  }

  std::vector<at::Tensor> tensors_;
  std::map<int, at::Tensor> storages_;
};

torch::jit::Stack stack_for(const CallSpec& call, const Operands& operands) {
  torch::jit::Stack stack;
  for (const auto& argument : call.arguments) {
    switch (argument.kind) {
      case CallArgument::Kind::Constant:
        stack.push_back(argument.constant);
        break;
      case CallArgument::Kind::Tensor:
        stack.emplace_back(operands.get(call, argument.operands.front()));
        break;
      case CallArgument::Kind::TensorList: {
        c10::List<at::Tensor> list;
        for (int number : argument.operands) {
          list.push_back(operands.get(call, number));
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case CallArgument::Kind::OptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int number : argument.operands) {
          list.push_back(number < 0 ? std::nullopt : std::optional(operands.get(call, number)));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  return stack;
}

CallMemory made(const CallSpec& call, const ZeroPages* pages) {
  const auto op = c10::Dispatcher::singleton().findSchema(call.op);
  TORCH_INTERNAL_ASSERT(op);
  const Operands operands(call, pages);
  auto stack = stack_for(call, operands);
  CallMemory memory;
  std::vector<at::Tensor> results;
  {
    const StateGuard state(call.state);
    const auto tracker = MemoryTracker::start(/*with_curve=*/false);
    try {
      op->callBoxed(stack);
    } catch (...) {
      tracker->stop();
      throw;
    }
    tracker->stop();
    // Outputs that were given have their final size, and are not read from the stack: torch 2.11 leaves nothing there.
    if (!writes_into_outputs(op->schema())) {
      results = tensors_in({stack.begin(), stack.end()});
    }
    const auto devices = tracker->devices();
    if (const auto host = devices.find("cpu"); host != devices.end()) {
      memory.peak = host->second.peak;
    }
  }
  at::autocast::clear_cache();
  for (const auto& result : results) {
    memory.results.push_back(Layout(result).storage_bytes);
  }
  return memory;
}

/// Nothing if the call cannot be made with either kind of numbers.
CallMemory measured(const CallSpec& call, const ZeroPages& pages) {
  for (const auto* zeros : {&pages, static_cast<const ZeroPages*>(nullptr)}) {
    try {
      return made(call, zeros);
    } catch (const std::exception&) {
      // The kernel does not take such numbers.
    }
  }
  CallMemory unknown;
  unknown.measured = false;
  return unknown;
}

/// What a call holds at least: what it writes and returns.
int64_t bytes_held(const CallSpec& call) {
  std::map<int, int64_t> written;
  for (const auto& operand : call.operands) {
    if (operand.written) {
      written[operand.storage] = operand.layout.storage_bytes;
    }
  }
  int64_t bytes = call.result_bytes;
  for (const auto& [storage, size] : written) {
    bytes += size;
  }
  return bytes;
}

} // namespace

size_t measure_calls(const std::vector<CallSpec>& calls, int64_t most_bytes) {
  int64_t largest = 0;
  for (const auto& call : calls) {
    for (const auto& operand : call.operands) {
      largest = std::max(largest, operand.layout.storage_bytes);
    }
  }
  const ZeroPages pages(static_cast<size_t>(largest));
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&silent);
  const RngGuard streams(RngState::of(c10::Device(c10::kCPU)));
  std::vector<std::pair<CallKey, CallMemory>> found;
  for (const auto& call : calls) {
    if (bytes_held(call) <= most_bytes) {
      found.emplace_back(call.key, measured(call, pages));
    }
  }
  call_memory::add(found);
  return found.size();
}

} // namespace recals
