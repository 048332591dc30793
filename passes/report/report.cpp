#include "passes/report/report.h"

#include <algorithm>
#include <map>
#include <numeric>

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

std::string dtype_of(const Allocation& allocation) {
  return allocation.dtype == c10::ScalarType::Undefined ? "other" : dtype_name(allocation.dtype);
}

/// The part of one device.
class DeviceBuilder {
 public:
  /// `eager_bytes`: as `make_report` takes it; empty for a device that they do not count for.
  DeviceBuilder(const DryRun& sizes, const std::vector<Use>& uses, int device, std::vector<int64_t> eager_bytes)
      : sizes_(sizes),
        ledger_(sizes.ledger),
        uses_(uses),
        device_(device),
        eager_bytes_(std::move(eager_bytes)),
        eager_(std::accumulate(eager_bytes_.begin(), eager_bytes_.end(), int64_t{0})) {}

  DeviceReport operator()() {
    DeviceReport report;
    report.name = sizes_.step.devices.at(device_);
    report.peak = report.held = eager_;
    report.overlap = overlap_in_words(sizes_, device_);
    for (int use = 0; use < kUses; ++use) {
      report.uses.push_back({name_of(static_cast<Use>(use)), 0, 0});
    }
    curve(report);
    Snapshot snapshot(ledger_);
    snapshot.advance(ledger_.forward_events);
    shares(report, snapshot.live(), &Share::held, -1);
    const size_t events = ledger_.events.empty() ? 0 : peak_event_ + 1;
    Snapshot at_peak(ledger_);
    at_peak.advance(events);
    const bool scratch = events > 0 && ledger_.events[peak_event_].allocation < 0;
    shares(report, at_peak.live(), &Share::peak, scratch ? static_cast<int>(peak_event_) : -1);
    at_peak_ = at_peak.live();
    report.modules = modules_.largest_first();
    report.ops = ops_.largest_first();
    report.dtypes = dtypes_.largest_first();
    return report;
  }

  /// Bytes per allocation that are live when this device is at its peak.
  const std::vector<int64_t>& live_at_peak() const {
    return at_peak_;
  }

 private:
  void curve(DeviceReport& report) {
    int64_t live = eager_;
    double seconds = 0;
    size_t e = 0;
    for (size_t m = 0; m < ledger_.moments.size(); ++m) {
      ReportPoint point;
      point.place = place_of(sizes_.step, ledger_.moments[m]);
      point.most = live;
      for (; e < ledger_.events.size() && ledger_.events[e].moment == static_cast<int>(m); ++e) {
        const auto& event = ledger_.events[e];
        if (event.device == device_) {
          const int64_t now = live + event.bytes;
          point.most = std::max(point.most, now);
          if (now > report.peak) {
            report.peak = now;
            report.peak_at = point.place;
            report.peak_point = static_cast<int>(m);
            peak_event_ = e;
          }
          if (event.allocation >= 0) {
            live = now;
          }
        }
        if (e + 1 == ledger_.forward_events) {
          report.held = live;
        }
      }
      seconds += ledger_.moments[m].seconds;
      point.seconds = seconds;
      point.live = live;
      report.curve.push_back(std::move(point));
    }
  }

  /// `scratch`: the event of the kernel's scratch memory that is live besides; -1 none.
  void shares(DeviceReport& report, const std::vector<int64_t>& live, int64_t Share::*when, int scratch) {
    auto add = [&](const Place& place, Use use, const std::string& dtype, int64_t bytes) {
      report.uses[static_cast<int>(use)].*when += bytes;
      modules_.add(place.module, when, bytes);
      ops_.add(place.op, when, bytes);
      dtypes_.add(dtype, when, bytes);
    };
    for (size_t a = 0; a < live.size(); ++a) {
      const auto& allocation = ledger_.allocations[a];
      if (live[a] != 0 && allocation.device == device_) {
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

  const DryRun& sizes_;
  const Ledger& ledger_;
  const std::vector<Use>& uses_;
  const int device_;
  const std::vector<int64_t> eager_bytes_;
  const int64_t eager_;
  size_t peak_event_ = 0;
  std::vector<int64_t> at_peak_;
  Groups modules_;
  Groups ops_;
  Groups dtypes_;
};

/// `live_at_peak`: per device, bytes per allocation.
std::vector<ReportedStorage> storages_of(
    const DryRun& sizes,
    const std::vector<Use>& uses,
    const std::vector<std::vector<int64_t>>& live_at_peak) {
  const auto& step = sizes.step;
  std::vector<int> slots(step.storages.size(), 0);
  for (const auto& slot : step.slots) {
    ++slots[slot.storage];
  }
  std::vector<ReportedStorage> all;
  for (size_t a = 0; a < sizes.ledger.allocations.size(); ++a) {
    const auto& allocation = sizes.ledger.allocations[a];
    if (allocation.storage < 0) {
      continue;
    }
    ReportedStorage storage;
    storage.name = step.storages[allocation.storage].name;
    storage.device = step.devices[allocation.device];
    storage.bytes = allocation.bytes;
    storage.dtype = dtype_of(allocation);
    storage.made = place_of(step, sizes.ledger.moments[allocation.moment]);
    storage.use = uses[a];
    storage.slots = slots[allocation.storage];
    storage.at_peak = live_at_peak[allocation.device][a] != 0;
    all.push_back(std::move(storage));
  }
  std::stable_sort(
      all.begin(), all.end(), [](const ReportedStorage& a, const ReportedStorage& b) { return a.bytes > b.bytes; });
  return all;
}

} // namespace

Report make_report(const DryRun& sizes, const std::vector<int64_t>& eager_bytes) {
  Report report;
  const auto uses = uses_of(sizes);
  std::vector<std::vector<int64_t>> live_at_peak;
  for (size_t d = 0; d < sizes.step.devices.size(); ++d) {
    const bool host = sizes.step.devices[d] == "cpu";
    DeviceBuilder builder(sizes, uses, static_cast<int>(d), host ? eager_bytes : std::vector<int64_t>());
    report.devices.push_back(builder());
    live_at_peak.push_back(builder.live_at_peak());
  }
  report.storages = storages_of(sizes, uses, live_at_peak);
  for (const auto& moment : sizes.ledger.moments) {
    (moment.phase == Phase::Forward      ? report.forward_seconds
         : moment.phase == Phase::Replay ? report.recompute_seconds
                                         : report.backward_seconds) += moment.seconds;
  }
  report.cost_model = sizes.step.cost_model;
  report.scratch = sizes.step.scratch;
  return report;
}

} // namespace recals
