#include "runtime/stream_state.h"

#include <algorithm>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace recals {

void StreamState::note_stream(c10::Device device) {
  const bool known = std::any_of(
      streams_.begin(), streams_.end(), [&](const c10::Stream& stream) { return stream.device() == device; });
  if (known) {
    return;
  }
  const c10::impl::VirtualGuardImpl backend(device.type());
  if (!current_) {
    current_ = backend.getDevice();
  }
  streams_.push_back(backend.getStream(device));
}

StreamStateGuard::StreamStateGuard(const StreamState& forward, c10::Device asked) {
  if (forward.streams().empty()) {
    return;
  }
  for (const auto& stream : forward.streams()) {
    if (stream.device() == asked) {
      from_ = stream;
      to_ = c10::impl::VirtualGuardImpl(asked.type()).getStream(asked);
    }
  }
  device_.reset_device(*forward.current());
  streams_.emplace(forward.streams());
}

void StreamStateGuard::hand_over(const at::Tensor& slot) const {
  if (from_ == to_) {
    return;
  }
  c10::Event ready(from_->device_type());
  ready.record(*from_);
  ready.block(*to_);
  slot.record_stream(*to_);
}

} // namespace recals
