#pragma once

/// The random numbers of a device, counter-based like those of GPUs: the state is a seed and an offset, 16 bytes.
///
/// A kernel that draws is given a host generator of its own, seeded from the device, the seed and the offset, and the
/// offset goes up by one if it drew. So every device has other numbers than the host and than its neighbours, also from
/// the same seed, and what is drawn out of turn or on another device shows.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace recals::sim {

class SimGenerator : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(c10::DeviceIndex index);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  /// 16 bytes on the host: seed, offset.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type();

 private:
  SimGenerator* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex index);

/// One kernel's draws from a generator of a device: holds its lock from the first to the last of them.
class Draw {
 public:
  explicit Draw(at::Generator generator);
  /// Moves the offset on, if something was drawn.
  ~Draw();
  Draw(const Draw&) = delete;
  Draw& operator=(const Draw&) = delete;

  /// What the kernel draws from.
  const at::Generator& host() const {
    return host_;
  }

 private:
  at::Generator generator_;
  std::unique_lock<std::mutex> lock_;
  at::Generator host_;
};

} // namespace recals::sim
