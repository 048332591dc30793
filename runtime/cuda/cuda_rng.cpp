#include "runtime/cuda/cuda_rng.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace recals {

namespace {

at::CUDAGeneratorImpl* philox(const at::Generator& generator) {
  return at::check_generator<at::CUDAGeneratorImpl>(generator);
}

[[maybe_unused]] const bool registered = [] {
  static const CudaRng cuda;
  register_rng_backend(c10::kCUDA, cuda);
  return true;
}();

} // namespace

GeneratorState CudaRng::save(const at::Generator& generator) const {
  GeneratorState state;
  state.seed = philox(generator)->current_seed();
  state.offset = philox(generator)->philox_offset_per_thread();
  return state;
}

void CudaRng::restore(at::Generator& generator, const GeneratorState& state) const {
  auto* impl = philox(generator);
  if (impl->current_seed() != state.seed) {
    // A new seed tells cuDNN to begin its dropout anew, at the next recurrent layer. A replay must not: the flag is
    // left as it was.
    const bool begins_anew = impl->reset_rnn_state();
    impl->set_current_seed(state.seed);
    if (!begins_anew) {
      impl->reset_rnn_state();
    }
  }
  impl->set_philox_offset_per_thread(state.offset);
}

std::optional<uint64_t> CudaRng::fingerprint(const at::Generator& generator) const {
  const auto state = save(generator);
  return state.seed * 0x9e3779b97f4a7c15U + state.offset;
}

int64_t CudaRng::bytes(c10::Device /*device*/) const {
  return 0;
}

std::string CudaRng::obstacle() const {
  const bool captured = c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  return captured ? "the stream is being captured into a CUDA graph" : "";
}

} // namespace recals
