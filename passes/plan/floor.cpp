#include "passes/plan/floor.h"

namespace recals::plan {
namespace {

class Floor {
 public:
  explicit Floor(const StepIndex& index)
      : index_(index),
        live_(index.devices, 0),
        floor_(index.devices),
        always_(index.storages, 0),
        users_(index.storages, 0),
        unreleased_(index.slots),
        in_use_(index.slot_storage.size(), 0) {
    for (int s = 0; s < index.storages; ++s) {
      always_[s] = index.stays[s] || (index.slots[s] > 0 && !index.recomputable[s] && index.packs[s].empty());
    }
  }

  std::vector<PeakPoint> of() {
    for (int n = 0; n < index_.nodes; ++n) {
      forward(n);
    }
    for (int e = 0; e < static_cast<int>(index_.backward.size()); ++e) {
      backward(e);
    }
    return floor_;
  }

 private:
  void touch(int device, int64_t bytes, bool in_backward, int at) {
    if (bytes > floor_[device].bytes) {
      floor_[device] = {bytes, in_backward, at, -1};
    }
  }
  void add(int storage, int sign) {
    live_[index_.device[storage]] += sign * index_.bytes[storage];
  }

  void forward(int n) {
    for (int d = 0; d < index_.devices; ++d) {
      touch(d, live_[d] + index_.transient[static_cast<size_t>(n) * index_.devices + d], false, n);
    }
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      add(*s, 1);
    }
    for (int d = 0; d < index_.devices; ++d) {
      touch(d, live_[d], false, n);
    }
    for (const int* s = index_.dying.begin(n); s != index_.dying.end(n); ++s) {
      if (!always_[*s]) {
        add(*s, -1);
      }
    }
  }

  void backward(int e) {
    const StepIndex::Event& event = index_.backward[e];
    const int s = event.target;
    switch (event.kind) {
      case BackwardEvent::Kind::Use:
        if (!in_use_[event.slot] && users_[s]++ == 0 && !always_[s]) {
          add(s, 1);
        }
        in_use_[event.slot] = 1;
        touch(index_.device[s], live_[index_.device[s]], true, e);
        break;
      case BackwardEvent::Kind::Release: {
        const bool last_user = in_use_[event.slot] && --users_[s] == 0;
        in_use_[event.slot] = 0;
        const bool last_slot = --unreleased_[s] == 0;
        if (always_[s] ? last_slot && !index_.stays[s] : last_user) {
          add(s, -1);
        }
        break;
      }
      case BackwardEvent::Kind::Change:
        live_[event.target] += event.bytes;
        touch(event.target, live_[event.target], true, e);
        break;
      case BackwardEvent::Kind::Peak:
        touch(event.target, live_[event.target] + event.bytes, true, e);
        break;
    }
  }

  const StepIndex& index_;
  std::vector<int64_t> live_;
  std::vector<PeakPoint> floor_;
  std::vector<uint8_t> always_; ///< per storage: it is there until its last slot is released, or to the end
  std::vector<int> users_; ///< per storage: slots in use
  std::vector<int> unreleased_; ///< per storage: slots
  std::vector<uint8_t> in_use_; ///< per slot
};

} // namespace

std::vector<PeakPoint> floor_of(const StepIndex& index) {
  return Floor(index).of();
}

} // namespace recals::plan
