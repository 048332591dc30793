#pragma once

/// CUDA's generators for replays. Loading this library is enough: it registers them (runtime/rng_backend.h).

#include "runtime/rng_backend.h"

namespace recals {

/// A state is a Philox seed and offset: 16 bytes on the host, read and set without a tensor and without waiting for the
/// device.
class RECALS_API CudaRng : public RngBackend {
 public:
  GeneratorState save(const at::Generator& generator) const override;
  void restore(at::Generator& generator, const GeneratorState& state) const override;
  std::optional<uint64_t> fingerprint(const at::Generator& generator) const override;
  int64_t bytes(c10::Device device) const override;
  /// A stream that is captured into a CUDA graph: inside it numbers are counted from an offset that the graph's launch
  /// sets, and torch has no way to go back in it.
  std::string obstacle() const override;
};

} // namespace recals
