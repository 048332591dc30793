// torch.ops.recals_sim: what tests read and set, all of it per device.
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include "test/sim/devices.h"
#include "test/sim/generator.h"
#include "test/sim/memory.h"
#include "test/sim/ordering.h"

namespace recals::sim {

namespace {

c10::DeviceIndex device(int64_t index) {
  return checked({kSim, static_cast<c10::DeviceIndex>(index)}).index();
}

template <typename F>
void locked(int64_t index, const F& use) {
  auto generator = default_generator(device(index));
  std::lock_guard<std::mutex> lock(generator.mutex());
  use(generator);
}

TORCH_LIBRARY(recals_sim, m) {
  m.def("device_count() -> int", [] { return int64_t{device_count()}; });
  m.def("current_device() -> int", [] { return int64_t{current_device()}; });
  m.def("set_device(int device) -> ()", [](int64_t index) { set_current_device(device(index)); });

  m.def("memory_allocated(int device) -> int", [](int64_t index) { return memory_counts(device(index)).live; });
  m.def("max_memory_allocated(int device) -> int", [](int64_t index) { return memory_counts(device(index)).peak; });
  m.def("out_of_memory(int device) -> int", [](int64_t index) { return memory_counts(device(index)).out_of_memory; });
  m.def("reset_peak(int device) -> ()", [](int64_t index) { reset_peak(device(index)); });
  m.def("set_capacity(int device, int? bytes) -> ()", [](int64_t index, std::optional<int64_t> bytes) {
    set_capacity(device(index), bytes.value_or(kNoCapacity));
  });

  m.def("launches(int device, int stream) -> int", [](int64_t index, int64_t stream) {
    return launches(device(index), stream);
  });
  m.def("take_hazards() -> str[]", [] { return take_hazards(); });
  m.def("blocks_recorded_on(int device, int stream) -> int", [](int64_t index, int64_t stream) {
    return blocks_recorded_on(device(index), stream);
  });

  m.def("stop_backward_threads() -> ()", [] { torch::autograd::Engine::get_default_engine().stop(); });

  m.def("manual_seed(int device, int seed) -> ()", [](int64_t index, int64_t seed) {
    locked(index, [&](at::Generator& generator) { generator.set_current_seed(static_cast<uint64_t>(seed)); });
  });
  m.def("get_rng_state(int device) -> Tensor", [](int64_t index) {
    at::Tensor state;
    locked(index, [&](at::Generator& generator) { state = generator.get_state(); });
    return state;
  });
  m.def("set_rng_state(int device, Tensor state) -> ()", [](int64_t index, const at::Tensor& state) {
    locked(index, [&](at::Generator& generator) { generator.set_state(state); });
  });
}

} // namespace

} // namespace recals::sim
