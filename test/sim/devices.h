#pragma once

/// The devices of the simulated accelerator and their streams. Work is done when the call returns; what
/// streams would mean if it were not is in ordering.h.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace recals::sim {

inline constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kMostDevices = 16;

/// How many there are: RECALS_SIM_DEVICES, read once, 1 to kMostDevices; 4 if it is not set.
c10::DeviceIndex device_count();

/// Throws c10::Error if there is no such device.
c10::Device checked(c10::Device device);

/// Of the calling thread.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index) noexcept;

/// The calling thread's current stream of a device; its default stream until set.
c10::Stream current_stream(c10::DeviceIndex index);
void set_current_stream(c10::Stream stream);
c10::Stream default_stream(c10::DeviceIndex index);
/// One that nobody else has.
c10::Stream new_stream(c10::DeviceIndex index);

} // namespace recals::sim
