// What torch asks a backend for: device guard, hooks, its name.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "test/sim/devices.h"
#include "test/sim/generator.h"
#include "test/sim/memory.h"
#include "test/sim/ordering.h"

namespace recals::sim {

namespace {

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kSim;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto outer = getDevice();
    setDevice(device);
    return outer;
  }
  c10::Device getDevice() const override {
    return {kSim, current_device()};
  }
  void setDevice(c10::Device device) const override {
    set_current_device(checked(device).index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(checked(device).index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(checked(device).index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(checked(device).index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return new_stream(checked(device).index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto outer = current_stream(stream.device_index());
    set_current_stream(stream);
    return outer;
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    record_stream(pointer, stream);
  }

  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    host_waits(stream);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    host_waits(clock_of_device(index));
  }

  // An event is a clock.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Clock();
    }
    *static_cast<Clock*>(*event) = clock_of(stream);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock*>(event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      stream_waits(stream, *static_cast<Clock*>(event));
    }
  }
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      host_waits(*static_cast<Clock*>(event));
    }
  }
};

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(checked({kSim, index}).index());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto outer = current_device();
    setCurrentDevice(index);
    return outer;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device() : exchangeDevice(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(checked({kSim, index}).index());
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<SimGenerator>(checked({kSim, index}).index());
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard on_its_device(storage.device());
    auto data = allocator()->allocate(bytes);
    allocator()->copy_data(data.mutable_get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard)

const bool registered = [] {
  c10::register_privateuse1_backend("sim");
  static SimHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

} // namespace

} // namespace recals::sim
