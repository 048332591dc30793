#pragma once

/// Which work is known to be over when other work begins.
///
/// Work is done when its launch returns, so nothing ever goes wrong here for lack of an event. On a device with
/// asynchronous streams it would. So each stream keeps a vector clock, as race detectors do: events, copies between
/// devices and waits of the host hand clocks on, and each launch is checked against what its memory was last used for. A
/// use that nothing orders is a hazard, and so is memory that goes while another stream than its own may still use it.

#include <map>
#include <string>
#include <vector>

#include <c10/core/Stream.h>

namespace recals::sim {

struct StreamKey {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  auto operator<=>(const StreamKey&) const = default;
};
StreamKey key_of(c10::Stream stream);

/// Stream -> how many of its launches are known to be over.
using Clock = std::map<StreamKey, uint64_t>;

/// What a block of memory was used for.
struct Uses {
  struct Use {
    uint64_t time;
    std::string op;
  };
  StreamKey home; ///< the stream that was current when it was allocated
  std::map<StreamKey, Use> write; ///< the last, if any
  std::map<StreamKey, Use> reads; ///< since then, the last on each stream
};

/// A kernel on the current stream of `device`.
void note_launch(
    c10::DeviceIndex device,
    const std::string& op,
    const std::vector<Uses*>& read,
    const std::vector<Uses*>& written);
/// The memory is about to go. `recorded`: streams of which the allocator knows.
void note_free(const Uses& uses, const std::vector<StreamKey>& recorded);

/// The current streams of both devices wait for each other, as they do around a copy from one to the other.
void join_streams(c10::DeviceIndex a, c10::DeviceIndex b);
/// The host waits for a stream.
void host_waits(c10::Stream stream);
void host_waits(const Clock& event);
/// What an event that is recorded now stands for.
Clock clock_of(c10::Stream stream);
Clock clock_of_device(c10::DeviceIndex device);
void stream_waits(c10::Stream stream, const Clock& event);

/// What was found since the last call, a line each.
std::vector<std::string> take_hazards();

int64_t launches(c10::DeviceIndex device, c10::StreamId stream);

} // namespace recals::sim
