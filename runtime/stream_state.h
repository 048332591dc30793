#pragma once

/// The current device and streams of a forward, for its replays.
///
/// Note [Streams of a replay]
/// Autograd runs each node of the backward on the stream that its forward ran on, but it sets only the stream of that
/// node's device; a replay may need other devices, too, and a slot may be read by hand, on any stream. All that a replay
/// reads and makes stays on the forward's streams, where work is done in order. If another stream asks for a slot, it
/// waits for the slot, whose memory is recorded on it.

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

namespace recals {

class StreamState {
 public:
  /// The forward works on `device`: which stream is current there? The CPU has none.
  void note(c10::Device device) {
    if (!device.is_cpu() && !device.is_meta()) {
      note_stream(device);
    }
  }
  const std::vector<c10::Stream>& streams() const {
    return streams_;
  }
  /// The current device when the first stream was noted: that of factories without an index.
  std::optional<c10::Device> current() const {
    return current_;
  }

 private:
  void note_stream(c10::Device device);

  std::vector<c10::Stream> streams_; ///< one for each device
  std::optional<c10::Device> current_;
};

/// Makes them current while it lives.
class StreamStateGuard {
 public:
  /// `asked`: the device of the slot that is asked for.
  StreamStateGuard(const StreamState& forward, c10::Device asked);
  /// That slot is ready on the forward's stream; whoever asked may use it.
  void hand_over(const at::Tensor& slot) const;

 private:
  std::optional<c10::Stream> from_; ///< the forward's stream of the slot's device
  std::optional<c10::Stream> to_; ///< the stream that asks
  c10::OptionalDeviceGuard device_;
  std::optional<c10::MultiStreamGuard> streams_;
};

} // namespace recals
