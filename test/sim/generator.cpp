#include "test/sim/generator.h"

#include <array>
#include <cstring>

#include <ATen/EmptyTensor.h>

#include "test/sim/devices.h"

namespace recals::sim {

namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

/// splitmix64: neighbouring numbers in, unrelated ones out.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

uint64_t host_seed(const at::Generator& generator) {
  const auto device = static_cast<uint64_t>(generator.device().index()) + 1;
  return mixed(mixed(mixed(device) ^ generator.current_seed()) ^ generator.get_offset());
}

} // namespace

SimGenerator::SimGenerator(c10::DeviceIndex index)
    : GeneratorImpl(c10::Device(kSim, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(c10::default_rng_seed_val) {}

void SimGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t SimGenerator::current_seed() const {
  return seed_;
}

uint64_t SimGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void SimGenerator::set_offset(uint64_t offset) {
  offset_ = offset;
}

uint64_t SimGenerator::get_offset() const {
  return offset_;
}

void SimGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "sim: a generator's state is ", kStateBytes, " bytes, not ", state.numel());
  const auto* bytes = static_cast<const char*>(state.data());
  std::memcpy(&seed_, bytes, sizeof(seed_));
  std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
}

c10::intrusive_ptr<c10::TensorImpl> SimGenerator::get_state() const {
  auto state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  auto* bytes = static_cast<char*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, sizeof(seed_));
  std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
  return state.getIntrusivePtr();
}

c10::DeviceType SimGenerator::device_type() {
  return kSim;
}

SimGenerator* SimGenerator::clone_impl() const {
  auto* clone = new SimGenerator(device().index());
  clone->seed_ = seed_;
  clone->offset_ = offset_;
  return clone;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto* generators = [] {
    auto* made = new std::array<at::Generator, kMostDevices>();
    for (c10::DeviceIndex i = 0; i < kMostDevices; ++i) {
      made->at(i) = at::make_generator<SimGenerator>(i);
    }
    return made;
  }();
  return generators->at(index);
}

Draw::Draw(at::Generator generator)
    : generator_(std::move(generator)),
      lock_(generator_.mutex()),
      host_(at::make_generator<at::CPUGeneratorImpl>(host_seed(generator_))) {}

Draw::~Draw() {
  // A fresh mt19937 stands at its first number, and never comes back there.
  if (host_.get<at::CPUGeneratorImpl>()->engine().data().next_ != 0) {
    generator_.set_offset(generator_.get_offset() + 1);
  }
}

} // namespace recals::sim
