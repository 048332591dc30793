#pragma once

/// How the generators of a kind of device save their states. The base class goes through ATen, which every device has;
/// a library that knows a device better registers its own when it is loaded (runtime/cuda).

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "recals/export.h"

namespace recals {

struct GeneratorState {
  at::Tensor bytes; ///< in host memory; undefined where seed and offset say it all
  uint64_t seed = 0;
  uint64_t offset = 0;
};

class RECALS_API RngBackend {
 public:
  virtual ~RngBackend() = default;

  // The caller holds the generator's mutex.
  virtual GeneratorState save(const at::Generator& generator) const;
  virtual void restore(at::Generator& generator, const GeneratorState& state) const;
  /// States that differ give different numbers (of 64 bits). Nothing where it would take memory to tell.
  virtual std::optional<uint64_t> fingerprint(const at::Generator& generator) const;

  /// Host memory that a saved state of the default generator of `device` takes, in bytes.
  virtual int64_t bytes(c10::Device device) const;
  /// Why states cannot be saved and restored at the moment; empty if they can.
  virtual std::string obstacle() const;
};

/// For all generators of that type from now on. `backend` must live as long as the process.
RECALS_API void register_rng_backend(c10::DeviceType type, const RngBackend& backend);

RECALS_API const RngBackend& rng_backend(c10::DeviceType type);

} // namespace recals
