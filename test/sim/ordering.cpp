#include "test/sim/ordering.h"

#include <mutex>

#include <c10/util/StringUtil.h>

#include "test/sim/devices.h"

namespace recals::sim {

namespace {

struct State {
  std::mutex mutex;
  std::map<StreamKey, Clock> streams;
  /// One for all threads of the host: they hand work to each other in ways that are not seen here.
  Clock host;
  std::vector<std::string> hazards;
};

State& state() {
  static auto* one = new State(); // outlives every tensor
  return *one;
}

void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, time] : other) {
    auto& known = clock[stream];
    known = std::max(known, time);
  }
}

uint64_t time_in(const Clock& clock, StreamKey stream) {
  auto found = clock.find(stream);
  return found == clock.end() ? 0 : found->second;
}

std::string name_of(StreamKey key) {
  return c10::str("stream ", key.stream, " of ", c10::Device(kSim, key.device));
}

void check(const Clock& now, StreamKey stream, const std::string& op, const std::map<StreamKey, Uses::Use>& uses) {
  for (const auto& [other, use] : uses) {
    if (use.time > time_in(now, other)) {
      state().hazards.push_back(c10::str(
          op,
          " on ",
          name_of(stream),
          " does not wait for ",
          use.op,
          " on ",
          name_of(other),
          ", which used its memory"));
    }
  }
}

StreamKey current_key(c10::DeviceIndex device) {
  return key_of(current_stream(device));
}

} // namespace

StreamKey key_of(c10::Stream stream) {
  return {stream.device_index(), stream.id()};
}

void note_launch(
    c10::DeviceIndex device,
    const std::string& op,
    const std::vector<Uses*>& read,
    const std::vector<Uses*>& written) {
  const auto stream = current_key(device);
  std::lock_guard<std::mutex> lock(state().mutex);
  auto& now = state().streams[stream];
  join(now, state().host); // a launch comes after all that its thread has waited for
  const Uses::Use use{++now[stream], op};
  for (auto* uses : read) {
    check(now, stream, op, uses->write);
    uses->reads[stream] = use;
  }
  for (auto* uses : written) {
    check(now, stream, op, uses->write);
    check(now, stream, op, uses->reads);
    uses->reads.clear();
    uses->write = {{stream, use}};
  }
}

void note_free(const Uses& uses, const std::vector<StreamKey>& recorded) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto home = state().streams[uses.home];
  join(home, state().host);
  for (const auto* some : {&uses.write, &uses.reads}) {
    for (const auto& [stream, use] : *some) {
      const bool known = stream == uses.home || std::find(recorded.begin(), recorded.end(), stream) != recorded.end();
      if (!known && use.time > time_in(home, stream)) {
        state().hazards.push_back(c10::str(
            "memory of ",
            name_of(uses.home),
            " is freed, which does not wait for ",
            use.op,
            " on ",
            name_of(stream),
            ", and was not recorded there"));
      }
    }
  }
}

void join_streams(c10::DeviceIndex a, c10::DeviceIndex b) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto& first = state().streams[current_key(a)];
  auto& second = state().streams[current_key(b)];
  join(first, second);
  join(second, first);
}

void host_waits(c10::Stream stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  join(state().host, state().streams[key_of(stream)]);
}

void host_waits(const Clock& event) {
  std::lock_guard<std::mutex> lock(state().mutex);
  join(state().host, event);
}

Clock clock_of(c10::Stream stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto clock = state().streams[key_of(stream)];
  join(clock, state().host);
  return clock;
}

Clock clock_of_device(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(state().mutex);
  Clock clock;
  for (const auto& [stream, time] : state().streams) {
    if (stream.device == device) {
      join(clock, time);
    }
  }
  return clock;
}

void stream_waits(c10::Stream stream, const Clock& event) {
  std::lock_guard<std::mutex> lock(state().mutex);
  join(state().streams[key_of(stream)], event);
}

std::vector<std::string> take_hazards() {
  std::lock_guard<std::mutex> lock(state().mutex);
  return std::exchange(state().hazards, {});
}

int64_t launches(c10::DeviceIndex device, c10::StreamId stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  const StreamKey key{device, stream};
  return static_cast<int64_t>(time_in(state().streams[key], key));
}

} // namespace recals::sim
