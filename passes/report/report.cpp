#include "passes/report/report.h"

#include <algorithm>
#include <map>

#include "runtime/describe.h"

namespace recals {

const char* name_of(Use use) {
  static constexpr const char* names[kUses] = {
      "saved", "output", "temporary", "workspace", "gradient", "recomputed", "loss"};
  return names[static_cast<int>(use)];
}

const char* name_of(Phase phase) {
  static constexpr const char* names[] = {"forward", "loss", "backward", "replay"};
  return names[static_cast<int>(phase)];
}

namespace {

Place place_of(const plan::StepGraph& step, const Moment& moment) {
  Place place;
  place.phase = moment.phase;
  if (moment.node >= 0) {
    const auto& node = step.nodes[moment.node];
    place.op = node.op;
    place.module = node.module;
    place.where = node.where;
  } else {
    place.op = moment.phase == Phase::Forward ? "(start)" : "(loss)";
    place.module = kOutside;
  }
  if (moment.phase == Phase::Backward && moment.backward_op >= 0) {
    place.forward_op = moment.node >= 0 ? place.op : "";
    place.op = step.backward_ops[moment.backward_op];
  }
  return place;
}

/// The use of every allocation.
std::vector<Use> uses_of(const DryRun& sizes) {
  const auto& ledger = sizes.ledger;
  std::vector<size_t> freed(ledger.allocations.size(), ledger.events.size());
  for (size_t e = 0; e < ledger.events.size(); ++e) {
    if (ledger.events[e].bytes < 0) {
      freed[ledger.events[e].allocation] = e;
    }
  }
  std::vector<bool> has_slot(sizes.step.storages.size(), false);
  for (const auto& slot : sizes.step.slots) {
    has_slot[slot.storage] = true;
  }
  std::vector<Use> uses;
  for (size_t a = 0; a < freed.size(); ++a) {
    const auto& allocation = ledger.allocations[a];
    const auto& made = ledger.moments[allocation.moment];
    switch (made.phase) {
      case Phase::Forward: {
        const bool output =
            allocation.storage >= 0 && sizes.step.storages[allocation.storage].output && !has_slot[allocation.storage];
        uses.push_back(freed[a] < ledger.forward_events ? Use::Temporary : output ? Use::Output : Use::Saved);
        break;
      }
      case Phase::Loss:
        uses.push_back(Use::Loss);
        break;
      case Phase::Replay:
        uses.push_back(Use::Recomputed);
        break;
      case Phase::Backward: {
        const bool outlives = freed[a] == ledger.events.size() ||
            ledger.moments[ledger.events[freed[a]].moment].backward_op != made.backward_op;
        uses.push_back(outlives ? Use::Gradient : Use::Temporary);
        break;
      }
    }
  }
  return uses;
}

/// The ledger up to some event: what is live then.
class Snapshot {
 public:
  explicit Snapshot(const Ledger& ledger) : ledger_(ledger), live_(ledger.allocations.size(), 0) {}

  /// `end`: one past the last event.
  void advance(size_t end) {
    for (; next_ < end; ++next_) {
      const auto& event = ledger_.events[next_];
      if (event.allocation >= 0) {
        live_[event.allocation] += event.bytes;
      }
    }
  }
  /// Bytes per allocation.
  const std::vector<int64_t>& live() const {
    return live_;
  }

 private:
  const Ledger& ledger_;
  std::vector<int64_t> live_;
  size_t next_ = 0;
};

/// Shares by name.
class Groups {
 public:
  void add(const std::string& name, int64_t Share::*when, int64_t bytes) {
    if (bytes != 0) {
      auto& share = shares_[name];
      share.name = name;
      share.*when += bytes;
    }
  }
  std::vector<Share> largest_first() const {
    std::vector<Share> sorted;
    for (const auto& [name, share] : shares_) {
      (void)name;
      sorted.push_back(share);
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const Share& a, const Share& b) {
      return std::pair(a.peak, a.held) > std::pair(b.peak, b.held);
    });
    return sorted;
  }

 private:
  std::map<std::string, Share> shares_;
};

class Builder {
 public:
  Builder(const DryRun& sizes, const std::vector<int64_t>& eager_bytes)
      : sizes_(sizes), ledger_(sizes.ledger), eager_bytes_(eager_bytes), uses_(uses_of(sizes)) {
    for (const int64_t bytes : eager_bytes) {
      eager_ += bytes;
    }
  }

  Report operator()() {
    Report report;
    DeviceReport device;
    device.name = sizes_.step.devices.at(0);
    device.peak = device.held = eager_;
    for (int use = 0; use < kUses; ++use) {
      device.uses.push_back({name_of(static_cast<Use>(use)), 0, 0});
    }
    curve(device);
    Snapshot snapshot(ledger_);
    snapshot.advance(ledger_.forward_events);
    shares(device, snapshot.live(), &Share::held, -1);
    Snapshot at_peak(ledger_);
    at_peak.advance(peak_event_ + 1);
    const bool scratch = !ledger_.events.empty() && ledger_.events[peak_event_].allocation < 0;
    shares(device, at_peak.live(), &Share::peak, scratch ? static_cast<int>(peak_event_) : -1);
    device.modules = modules_.largest_first();
    device.ops = ops_.largest_first();
    device.dtypes = dtypes_.largest_first();
    report.storages = storages(at_peak.live());
    report.devices.push_back(std::move(device));
    for (const auto& moment : ledger_.moments) {
      (moment.phase == Phase::Forward      ? report.forward_seconds
           : moment.phase == Phase::Replay ? report.recompute_seconds
                                           : report.backward_seconds) += moment.seconds;
    }
    report.cost_model = sizes_.step.cost_model;
    return report;
  }

 private:
  void curve(DeviceReport& device) {
    int64_t live = eager_;
    double seconds = 0;
    size_t e = 0;
    for (size_t m = 0; m < ledger_.moments.size(); ++m) {
      ReportPoint point;
      point.place = place_of(sizes_.step, ledger_.moments[m]);
      point.most = live;
      for (; e < ledger_.events.size() && ledger_.events[e].moment == static_cast<int>(m); ++e) {
        const auto& event = ledger_.events[e];
        const int64_t now = live + event.bytes;
        point.most = std::max(point.most, now);
        if (now > device.peak) {
          device.peak = now;
          device.peak_at = point.place;
          device.peak_point = static_cast<int>(m);
          peak_event_ = e;
        }
        if (event.allocation >= 0) {
          live = now;
        }
        if (e + 1 == ledger_.forward_events) {
          device.held = live;
        }
      }
      seconds += ledger_.moments[m].seconds;
      point.seconds = seconds;
      point.live = live;
      device.curve.push_back(std::move(point));
    }
  }

  /// `scratch`: the event of the kernel's scratch memory that is live besides; -1 none.
  void shares(DeviceReport& device, const std::vector<int64_t>& live, int64_t Share::*when, int scratch) {
    auto add = [&](const Place& place, Use use, const std::string& dtype, int64_t bytes) {
      device.uses[static_cast<int>(use)].*when += bytes;
      modules_.add(place.module, when, bytes);
      ops_.add(place.op, when, bytes);
      dtypes_.add(dtype, when, bytes);
    };
    for (size_t a = 0; a < live.size(); ++a) {
      if (live[a] != 0) {
        const auto& allocation = ledger_.allocations[a];
        add(place_of(sizes_.step, ledger_.moments[allocation.moment]), uses_[a], dtype_of(allocation), live[a]);
      }
    }
    if (scratch >= 0) {
      const auto& event = ledger_.events[scratch];
      add(place_of(sizes_.step, ledger_.moments[event.moment]), Use::Workspace, "other", event.bytes);
    }
    for (size_t n = 0; n < eager_bytes_.size(); ++n) {
      if (eager_bytes_[n] != 0) {
        Moment moment;
        moment.node = static_cast<int>(n);
        add(place_of(sizes_.step, moment), Use::Saved, "other", eager_bytes_[n]);
      }
    }
  }

  static std::string dtype_of(const Allocation& allocation) {
    return allocation.dtype == c10::ScalarType::Undefined ? "other" : dtype_name(allocation.dtype);
  }

  std::vector<ReportedStorage> storages(const std::vector<int64_t>& live_at_peak) const {
    const auto& step = sizes_.step;
    std::vector<int> slots(step.storages.size(), 0);
    for (const auto& slot : step.slots) {
      ++slots[slot.storage];
    }
    std::vector<ReportedStorage> all;
    for (size_t a = 0; a < ledger_.allocations.size(); ++a) {
      const auto& allocation = ledger_.allocations[a];
      if (allocation.storage < 0) {
        continue;
      }
      ReportedStorage storage;
      storage.name = step.storages[allocation.storage].name;
      storage.bytes = allocation.bytes;
      storage.dtype = dtype_of(allocation);
      storage.made = place_of(step, ledger_.moments[allocation.moment]);
      storage.use = uses_[a];
      storage.slots = slots[allocation.storage];
      storage.at_peak = live_at_peak[a] != 0;
      all.push_back(std::move(storage));
    }
    std::stable_sort(
        all.begin(), all.end(), [](const ReportedStorage& a, const ReportedStorage& b) { return a.bytes > b.bytes; });
    return all;
  }

  const DryRun& sizes_;
  const Ledger& ledger_;
  const std::vector<int64_t>& eager_bytes_;
  const std::vector<Use> uses_;
  int64_t eager_ = 0;
  size_t peak_event_ = 0;
  Groups modules_;
  Groups ops_;
  Groups dtypes_;
};

} // namespace

Report make_report(const DryRun& sizes, const std::vector<int64_t>& eager_bytes) {
  return Builder(sizes, eager_bytes)();
}

} // namespace recals
