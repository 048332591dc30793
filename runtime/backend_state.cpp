#include "runtime/backend_state.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <torch/version.h>

#include "runtime/describe.h"

namespace recals {

namespace {

using at::Context;

/// A switch as a number, and how it is read and set.
struct Switch {
  int64_t (*get)(Context&);
  void (*set)(Context&, int64_t);
};

template <auto Get, auto Set>
constexpr Switch flag() {
  return {
      [](Context& context) { return static_cast<int64_t>((context.*Get)()); },
      [](Context& context, int64_t value) { (context.*Set)(value != 0); }};
}

template <auto Get, auto Set, typename Value>
constexpr Switch choice() {
  return {
      [](Context& context) { return static_cast<int64_t>((context.*Get)()); },
      [](Context& context, int64_t value) { (context.*Set)(static_cast<Value>(value)); }};
}

/// The precision that matrix products and convolutions in float32 may be computed in.
template <at::Float32Backend Backend, at::Float32Op Op>
constexpr Switch precision() {
  return {
      [](Context& context) { return static_cast<int64_t>(context.float32Precision(Backend, Op)); },
      [](Context& context, int64_t value) {
        context.setFloat32Precision(Backend, Op, static_cast<at::Float32Precision>(value));
      }};
}

/// May a sum in half precision be reduced in it, and split?
template <auto Get, auto Set>
constexpr Switch reduction() {
  return {
      [](Context& context) { return static_cast<int64_t>((context.*Get)()); },
      [](Context& context, int64_t value) {
        const auto option = static_cast<at::CuBLASReductionOption>(value);
        (context.*Set)(
            option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
            option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
      }};
}

/// 0: off, 1: on, 2: on, but only warns where there is no deterministic kernel.
constexpr Switch deterministic_algorithms() {
  return {
      [](Context& context) {
        const int64_t warns = context.deterministicAlgorithmsWarnOnly() ? 2 : 1;
        return context.deterministicAlgorithms() ? warns : 0;
      },
      [](Context& context, int64_t value) { context.setDeterministicAlgorithms(value != 0, value == 2); }};
}

constexpr int64_t kBackends = 16; // of attention: more than there are

/// The order in which attention's backends are tried, one digit each.
constexpr Switch attention_order() {
  return {
      [](Context& context) {
        int64_t order = 0;
        for (const auto backend : context.sDPPriorityOrder()) {
          order = order * kBackends + static_cast<int64_t>(backend);
        }
        return order;
      },
      [](Context& context, int64_t value) {
        std::vector<int64_t> order(at::num_sdp_backends);
        for (auto place = order.rbegin(); place != order.rend(); ++place) {
          *place = value % kBackends;
          value /= kBackends;
        }
        context.setSDPPriorityOrder(order);
      }};
}

constexpr Switch threads() {
  return {
      [](Context&) { return static_cast<int64_t>(at::get_num_threads()); },
      [](Context&, int64_t value) { at::set_num_threads(static_cast<int>(value)); }};
}

constexpr Switch default_dtype() {
  return {
      [](Context&) { return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()); },
      [](Context&, int64_t value) {
        c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(value)));
      }};
}

// Where those stand that `text` tells.
enum Place : size_t {
  kOneDnn,
  kCuDnn,
  kFlash,
  kEfficient,
  kMath,
  kCuDnnAttention,
  kOverrideable,
  kDeterministic,
  kDefaultDtype,
  kNamed, ///< how many there are
};

constexpr std::array kTable {
  flag<&Context::userEnabledMkldnn, &Context::setUserEnabledMkldnn>(),
      flag<&Context::userEnabledCuDNN, &Context::setUserEnabledCuDNN>(),
      flag<&Context::userEnabledFlashSDP, &Context::setSDPUseFlash>(),
      flag<&Context::userEnabledMemEfficientSDP, &Context::setSDPUseMemEfficient>(),
      flag<&Context::userEnabledMathSDP, &Context::setSDPUseMath>(),
      flag<&Context::userEnabledCuDNNSDP, &Context::setSDPUseCuDNN>(),
      flag<&Context::userEnabledOverrideableSDP, &Context::setSDPUseOverrideable>(), deterministic_algorithms(),
      default_dtype(), threads(), attention_order(),
      flag<&Context::allowFP16BF16ReductionMathSDP, &Context::setAllowFP16BF16ReductionMathSDP>(),
      flag<&Context::deterministicFillUninitializedMemory, &Context::setDeterministicFillUninitializedMemory>(),
      flag<&Context::deterministicMkldnn, &Context::setDeterministicMkldnn>(),
      flag<&Context::userEnabledNNPACK, &Context::setUserEnabledNNPACK>(),
      flag<&Context::benchmarkCuDNN, &Context::setBenchmarkCuDNN>(),
      choice<&Context::benchmarkLimitCuDNN, &Context::setBenchmarkLimitCuDNN, int>(),
      flag<&Context::deterministicCuDNN, &Context::setDeterministicCuDNN>(),
      reduction<&Context::allowFP16ReductionCuBLAS, &Context::setAllowFP16ReductionCuBLAS>(),
      reduction<&Context::allowBF16ReductionCuBLAS, &Context::setAllowBF16ReductionCuBLAS>(),
      flag<&Context::allowFP16AccumulationCuBLAS, &Context::setAllowFP16AccumulationCuBLAS>(),
      flag<&Context::allowFP16ReductionCPU, &Context::setAllowFP16ReductionCPU>(),
      choice<&Context::linalgPreferredBackend, &Context::setLinalgPreferredBackend, at::LinalgBackend>(),
      choice<&Context::blasPreferredBackend, &Context::setBlasPreferredBackend, at::BlasBackend>(),
      // From the general to the special: what is not set by itself follows.
      precision<at::Float32Backend::GENERIC, at::Float32Op::ALL>(),
      precision<at::Float32Backend::MKLDNN, at::Float32Op::ALL>(),
      precision<at::Float32Backend::MKLDNN, at::Float32Op::CONV>(),
      precision<at::Float32Backend::MKLDNN, at::Float32Op::RNN>(),
      precision<at::Float32Backend::MKLDNN, at::Float32Op::MATMUL>(),
      precision<at::Float32Backend::CUDA, at::Float32Op::ALL>(),
      precision<at::Float32Backend::CUDA, at::Float32Op::CONV>(),
      precision<at::Float32Backend::CUDA, at::Float32Op::RNN>(),
      precision<at::Float32Backend::CUDA, at::Float32Op::MATMUL>(),
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
      flag<&Context::userEnabledFA3SDP, &Context::setSDPUseFA3>(),
      flag<&Context::userEnabledFA4SDP, &Context::setSDPUseFA4>(),
      choice<&Context::cudnnDepthwiseKernel, &Context::setCuDNNDepthwiseKernel, at::CuDNNDepthwiseKernel>(),
      flag<&Context::allowNativeAot, &Context::setAllowNativeAot>(),
#endif
};

struct Attention {
  Place place;
  const char* name;
  bool of_accelerators; ///< the CPU has no such kernel
};

constexpr std::array kAttentions{
    Attention{kFlash, "flash", false},
    Attention{kEfficient, "efficient", true},
    Attention{kMath, "math", false},
    Attention{kCuDnnAttention, "cudnn", true},
    Attention{kOverrideable, "overrideable", true},
};

constexpr std::string_view kBegin = ") with ";
constexpr std::string_view kOneDnnOff = "oneDNN off";
constexpr std::string_view kCuDnnOff = "cuDNN off";
constexpr std::string_view kAttention = "attention: ";
constexpr std::string_view kDeterministicText = "deterministic algorithms";
constexpr std::string_view kDtype = "default dtype ";
constexpr std::array kDtypes{c10::kDouble, c10::kHalf, c10::kBFloat16};

bool starts_with(std::string_view text, std::string_view begin) {
  return text.substr(0, begin.size()) == begin;
}

} // namespace

BackendState BackendState::current() {
  static_assert(kTable.size() <= kSwitches);
  BackendState state;
  auto& context = at::globalContext();
  for (size_t i = 0; i < kTable.size(); ++i) {
    state.values_[i] = kTable[i].get(context);
  }
  return state;
}

void BackendState::set() const {
  auto& context = at::globalContext();
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].get(context) != values_[i]) {
      kTable[i].set(context, values_[i]);
    }
  }
}

Checksum BackendState::checksum() const {
  return checksum_of(values_.data(), values_.size() * sizeof(values_[0]));
}

std::string BackendState::text(const std::set<c10::DeviceType>& types) const {
  const bool cpu = types.count(c10::kCPU) > 0;
  const bool accelerator = std::any_of(types.begin(), types.end(), [](auto type) { return type != c10::kCPU; });
  std::string words;
  auto add = [&](const std::string& word) { words += (words.empty() ? "" : ", ") + word; };
  if (cpu && values_[kOneDnn] == 0) {
    add(std::string(kOneDnnOff));
  }
  if (types.count(c10::kCUDA) > 0 && values_[kCuDnn] == 0) {
    add(std::string(kCuDnnOff));
  }
  std::string on;
  bool all = true;
  for (const auto& attention : kAttentions) {
    if (attention.of_accelerators && !accelerator) {
      continue;
    }
    if (values_[attention.place] != 0) {
      on += (on.empty() ? "" : "+") + std::string(attention.name);
    } else {
      all = false;
    }
  }
  if (!all) {
    add(std::string(kAttention) + (on.empty() ? "none" : on));
  }
  if (values_[kDeterministic] != 0) {
    add(std::string(kDeterministicText));
  }
  const auto dtype = static_cast<c10::ScalarType>(values_[kDefaultDtype]);
  if (dtype != c10::kFloat) {
    add(std::string(kDtype) + dtype_name(dtype));
  }
  return words.empty() ? "" : " with " + words;
}

std::pair<std::string, std::optional<BackendState>> BackendState::parse(const std::string& text) {
  const auto begin = text.rfind(kBegin);
  // Nothing that `text` writes has a parenthesis; a quoted input before it may have these words.
  if (begin == std::string::npos || text.find(')', begin + 1) != std::string::npos) {
    return {text, std::nullopt};
  }
  auto state = current();
  std::istringstream words(text.substr(begin + kBegin.size()));
  for (std::string word; std::getline(words >> std::ws, word, ',');) {
    if (word == kOneDnnOff) {
      state.values_[kOneDnn] = 0;
    } else if (word == kCuDnnOff) {
      state.values_[kCuDnn] = 0;
    } else if (word == kDeterministicText) {
      state.values_[kDeterministic] = 1;
    } else if (starts_with(word, kAttention)) {
      const auto on = "+" + word.substr(kAttention.size()) + "+";
      for (const auto& attention : kAttentions) {
        state.values_[attention.place] = on.find("+" + std::string(attention.name) + "+") != std::string::npos ? 1 : 0;
      }
    } else {
      const auto dtype = std::find_if(
          kDtypes.begin(), kDtypes.end(), [&](auto known) { return word == std::string(kDtype) + dtype_name(known); });
      TORCH_CHECK(
          dtype != kDtypes.end(), "recals: '", text, "' names a switch that this version does not know: ", word);
      state.values_[kDefaultDtype] = static_cast<int64_t>(*dtype);
    }
  }
  return {text.substr(0, begin + 1), state};
}

BackendGuard::BackendGuard(const BackendState& state) {
  auto outer = BackendState::current();
  if (!(outer == state)) {
    outer_ = outer;
    state.set();
  }
}

BackendGuard::~BackendGuard() {
  if (outer_) {
    try {
      outer_->set();
    } catch (const std::exception& error) {
      TORCH_WARN_ONCE("recals: a switch of torch's backends was not put back after a replay: ", error.what());
    }
  }
}

} // namespace recals
