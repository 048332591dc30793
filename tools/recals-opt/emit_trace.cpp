#include <nlohmann/json.hpp>

#include "tools/recals-opt/emit.h"
#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

using Json = nlohmann::ordered_json;

/// One run of the step as a process of the trace: a counter for each device, and the nodes of the forward as slices.
class Track {
 public:
  Track(const DryRun& sizes, int process, Json& events) : sizes_(sizes), process_(process), events_(events) {}

  void run(const std::string& name, const std::vector<plan::Fate>& fates) {
    events_.push_back({{"ph", "M"}, {"pid", process_}, {"name", "process_name"}, {"args", {{"name", name}}}});
    const auto simulation = plan::simulate(sizes_.step, fates, /*with_curve=*/true);
    double now = 0; // microseconds
    counter(now, std::vector<int64_t>(sizes_.step.devices.size(), 0));
    const double backward =
        sizes_.backward_seconds * 1e6 / static_cast<double>(std::max<size_t>(1, events_of_backward()));
    for (const auto& point : simulation.curve) {
      const double length = point.in_backward ? backward : sizes_.step.nodes[point.index].seconds * 1e6;
      if (!point.in_backward) {
        slice(now, length, sizes_.step.nodes[point.index]);
      }
      counter(now, point.most);
      now += length;
      counter(now, point.live);
    }
  }

 private:
  size_t events_of_backward() const {
    return sizes_.step.backward.size();
  }

  void counter(double when, const std::vector<int64_t>& bytes) {
    for (size_t d = 0; d < bytes.size(); ++d) {
      events_.push_back(
          {{"ph", "C"},
           {"pid", process_},
           {"ts", when},
           {"name", "activation memory on " + sizes_.step.devices[d]},
           {"args", {{"bytes", bytes[d]}}}});
    }
  }

  void slice(double when, double length, const plan::Node& node) {
    events_.push_back(
        {{"ph", "X"},
         {"pid", process_},
         {"tid", 1},
         {"ts", when},
         {"dur", length},
         {"name", node.op},
         {"args", {{"module", node.module}, {"where", node.where}}}});
  }

  const DryRun& sizes_;
  const int process_;
  Json& events_;
};

} // namespace

std::string trace_of(const Job& job) {
  if (!job.analysis || job.sized.empty()) {
    throw BadInput("there is no memory to trace before the pass 'sizes'");
  }
  const auto& sizes = job.analysis->sizes;
  Json events = Json::array();
  Track(sizes, 1, events).run("plain", std::vector<plan::Fate>(sizes.step.storages.size(), plan::Fate::Keep));
  if (job.planned) {
    Track(sizes, 2, events).run("planned", job.planned->plan.fates);
  }
  // Names come from source files: bytes that are no UTF-8 must not throw here.
  const Json document = {{"traceEvents", events}, {"displayTimeUnit", "ms"}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace recals::opt
