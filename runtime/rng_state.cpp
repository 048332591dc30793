#include "runtime/rng_state.h"

#include <array>
#include <functional>

#include <ATen/Context.h>
#include <ATen/Functions.h>

namespace recals {

namespace {

const RngBackend& backend_of(const at::Generator& generator) {
  return rng_backend(generator.device().type());
}

/// Generators share locks: one for each would have to know when it goes.
std::recursive_mutex& lock_of(const at::Generator& generator) {
  static std::array<std::recursive_mutex, 64> locks;
  return locks[std::hash<const void*>()(generator.unsafeGetGeneratorImpl()) / alignof(std::max_align_t) % locks.size()];
}

void check_reachable(const at::Generator& generator) {
  const auto obstacle = backend_of(generator).obstacle();
  TORCH_CHECK(
      obstacle.empty(),
      "recals: the plan draws random numbers of ",
      generator.device(),
      " again in the backward, and the state of its generator cannot be taken now: ",
      obstacle,
      ". Call recals.optimize with preserve_rng_state=False: what draws is kept then.");
}

} // namespace

at::Generator RngState::default_generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

int64_t RngState::bytes(c10::Device device) {
  if (device.is_cpu()) {
    static const int64_t cpu = rng_backend(c10::kCPU).bytes(c10::kCPU);
    return cpu;
  }
  try {
    return rng_backend(device.type()).bytes(device);
  } catch (const c10::Error&) {
    return 0;
  }
}

RngState RngState::of(const at::Generator& generator) {
  return of(generator, generator);
}

RngState RngState::of(const at::Generator& generator, const at::Generator& copy) {
  check_reachable(generator);
  auto source = copy;
  std::lock_guard<std::mutex> lock(source.mutex());
  return {generator, backend_of(generator).save(source)};
}

RngState RngState::stand_in(c10::Device memory, int64_t bytes) {
  GeneratorState state;
  state.bytes = at::empty({bytes}, at::TensorOptions().device(memory).dtype(at::kByte));
  return {at::Generator(), std::move(state)};
}

at::Generator RngState::copy_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

RngState RngState::now() const {
  return generator_.defined() ? of(generator_) : stand_in(state_.bytes.device(), state_.bytes.numel());
}

void RngState::restore() const {
  if (!generator_.defined()) {
    return;
  }
  auto generator = generator_;
  std::lock_guard<std::mutex> lock(generator.mutex());
  backend_of(generator).restore(generator, state_);
}

RngState::Place RngState::place_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return backend_of(generator).fingerprint(generator);
}

DrawLock::DrawLock(const at::Generator& generator) : lock_(lock_of(generator)) {}

RngGuard::RngGuard(const RngState& state)
    : lock_(state.generator().defined() ? std::make_optional<DrawLock>(state.generator()) : std::nullopt),
      outer_(state.now()) {
  state.restore();
}

RngGuard::~RngGuard() {
  outer_.restore();
}

} // namespace recals
