#include "runtime/rng_backend.h"

#include <array>
#include <atomic>
#include <bit>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace recals {

GeneratorState RngBackend::save(const at::Generator& generator) const {
  GeneratorState state;
  state.bytes = generator.get_state();
  return state;
}

void RngBackend::restore(at::Generator& generator, const GeneratorState& state) const {
  generator.set_state(state.bytes);
}

std::optional<uint64_t> RngBackend::fingerprint(const at::Generator& /*generator*/) const {
  return std::nullopt;
}

int64_t RngBackend::bytes(c10::Device device) const {
  auto generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return static_cast<int64_t>(generator.get_state().storage().nbytes());
}

std::string RngBackend::obstacle() const {
  return "";
}

namespace {

class CpuRng : public RngBackend {
 public:
  std::optional<uint64_t> fingerprint(const at::Generator& generator) const override {
    auto* cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
    const auto engine = cpu->engine().data();
    uint64_t hash = 0;
    auto mix = [&](uint64_t word) { hash = (std::rotl(hash, 5) ^ word) * 0x9e3779b97f4a7c15U; };
    for (const uint32_t word : engine.state_) {
      mix(word);
    }
    mix(engine.next_);
    mix(static_cast<uint64_t>(engine.left_));
    // Normal numbers come in pairs; the second one waits.
    const auto single = cpu->next_float_normal_sample();
    mix(single ? std::bit_cast<uint32_t>(*single) + 1ULL : 0);
    const auto twice = cpu->next_double_normal_sample();
    mix(twice ? std::bit_cast<uint64_t>(*twice) : 0);
    mix(twice.has_value() ? 1 : 0);
    return hash;
  }
};

using Backends =
    std::array<std::atomic<const RngBackend*>, static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>;

Backends& backends() {
  static const CpuRng cpu;
  static Backends all{};
  static const bool filled = [] {
    all[static_cast<size_t>(c10::kCPU)] = &cpu;
    return true;
  }();
  (void)filled;
  return all;
}

} // namespace

void register_rng_backend(c10::DeviceType type, const RngBackend& backend) {
  backends().at(static_cast<size_t>(type)) = &backend;
}

const RngBackend& rng_backend(c10::DeviceType type) {
  static const RngBackend through_aten;
  const auto* backend = backends().at(static_cast<size_t>(type)).load();
  return backend != nullptr ? *backend : through_aten;
}

} // namespace recals
