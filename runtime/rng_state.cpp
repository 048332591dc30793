#include "runtime/rng_state.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "runtime/devices_here.h"
#include "runtime/waiting.h"

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
  // Asked once a kind: asking makes such a state, which whoever counts the host's allocations would see.
  static std::mutex mutex;
  static std::map<c10::DeviceType, int64_t> known;
  std::lock_guard<std::mutex> lock(mutex);
  auto kind = known.find(device.type());
  if (kind == known.end()) {
    const bool there = device.is_cpu() || device.index() < devices_here(device.type());
    kind = known.emplace(device.type(), there ? rng_backend(device.type()).bytes(device) : 0).first;
  }
  return kind->second;
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

RngState RngState::stand_in(c10::Device device, const DeviceTable& devices) {
  // It is kept on the host, whose bytes count if the step uses it.
  const int host = devices.number_of(c10::kCPU);
  const int64_t size = host < 0 ? 0 : bytes(devices.real(device));
  const c10::Device on = host < 0 ? device : devices.stand_in(c10::kCPU);
  GeneratorState state;
  state.bytes = at::empty({size}, at::TensorOptions().device(on).dtype(at::kByte));
  return {at::Generator(), std::move(state)};
}

at::Generator RngState::copy_of(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.clone();
}

RngState RngState::now() const {
  if (generator_.defined()) {
    return of(generator_);
  }
  GeneratorState state;
  state.bytes = at::empty_like(state_.bytes);
  return {at::Generator(), std::move(state)};
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

DrawLock::DrawLock(const at::Generator& generator) : lock_(lock_politely(lock_of(generator))) {}

RngGuard::RngGuard(const RngState& state)
    : lock_(state.generator().defined() ? std::make_optional<DrawLock>(state.generator()) : std::nullopt),
      outer_(state.now()) {
  state.restore();
}

void RngGuard::put_back() {
  if (const auto outer = std::exchange(outer_, std::nullopt)) {
    outer->restore();
  }
}

RngGuard::~RngGuard() {
  try {
    put_back();
  } catch (const std::exception& error) {
    TORCH_WARN("recals: the generator's state was not put back after a replay: ", error.what());
  }
}

} // namespace recals
