#pragma once

/// The state of the generator that a random node draws from.
///
/// Note [Draws and threads]
/// A replay sets the state of a generator that other threads may be using, and what they draw meanwhile comes out of
/// the wrong place, as do the numbers of the replay. Two things keep gradients right. Recals' own draws exclude each
/// other: whoever draws or replays holds a DrawLock. Draws of others are noticed: a state remembers where the node that
/// drew from it left the generator, and a replay must end at the same place.

#include <mutex>
#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "recals/export.h"
#include "runtime/device_table.h"
#include "runtime/rng_backend.h"

namespace recals {

class RECALS_API RngState {
 public:
  /// The present state. Throws c10::Error if it cannot be taken now (RngBackend::obstacle).
  static RngState of(const at::Generator& generator);
  /// The state that `generator` had when `copy` was cloned from it.
  static RngState of(const at::Generator& generator, const at::Generator& copy);
  static RngState of(c10::Device device) {
    return of(default_generator(device));
  }

  /// On meta nothing is drawn: takes the memory that a state of `device`, or of what this meta device stands for in
  /// `devices`, would take, so that a dry run counts it.
  static RngState stand_in(c10::Device device, const DeviceTable& devices);

  static at::Generator default_generator(c10::Device device);
  /// A copy that is no tensor and takes no memory that a plan counts.
  static at::Generator copy_of(at::Generator generator);
  /// Host memory that a state of the default generator of `device` takes, in bytes; 0 for a device that this process does
  /// not have.
  static int64_t bytes(c10::Device device);

  /// What `of` gives now, for the same generator.
  RngState now() const;
  void restore() const;

  /// Where a generator is; nothing where it would take memory to tell.
  using Place = std::optional<uint64_t>;
  static Place place_of(at::Generator generator);
  /// A draw that begins at this state ends at `place`.
  void ends_at(Place place) {
    end_ = place;
  }
  /// Has one just ended where it should? True where this is not known.
  bool has_ended_alike() const {
    return !end_ || place_of(generator_) == end_;
  }

  const at::Generator& generator() const {
    return generator_;
  }

 private:
  RngState(at::Generator generator, GeneratorState state)
      : generator_(std::move(generator)), state_(std::move(state)) {}

  at::Generator generator_; ///< undefined for a stand-in
  GeneratorState state_;
  Place end_;
};

/// Keeps Recals' other draws from that generator away; a thread may hold it several times.
class RECALS_API DrawLock {
 public:
  explicit DrawLock(const at::Generator& generator);

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

/// Puts the generator's state aside, sets `state`, and brings the outer state back at the end of the scope, also when an
/// exception leaves it.
class RECALS_API RngGuard {
 public:
  explicit RngGuard(const RngState& state);
  /// Warns if the outer state cannot be brought back.
  ~RngGuard();
  /// Brings it back now, so that what goes wrong can be thrown. Throws c10::Error if the generator cannot be set.
  void put_back();
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  std::optional<DrawLock> lock_;
  std::optional<RngState> outer_; ///< nothing once it is back
};

} // namespace recals
