#include <nlohmann/json.hpp>

#include "tools/recals-opt/emit.h"
#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

using Json = nlohmann::ordered_json;

/// One run of the step as a process of the trace: a counter for each device, and what runs as slices, a line for each
/// phase.
class Track {
 public:
  Track(int process, Json& events) : process_(process), events_(events) {}

  void run(const std::string& name, const Report& report) {
    name_of_process(name);
    for (const auto& device : report.devices) {
      counter(0, device.name, 0);
      double begin = 0; // microseconds
      for (const auto& point : device.curve) {
        const double end = point.seconds * 1e6;
        slice(begin, end, point.place);
        counter(begin, device.name, point.most);
        counter(end, device.name, point.live);
        begin = end;
      }
    }
  }

 private:
  void name_of_process(const std::string& name) {
    events_.push_back({{"ph", "M"}, {"pid", process_}, {"name", "process_name"}, {"args", {{"name", name}}}});
    for (const auto phase : {Phase::Forward, Phase::Loss, Phase::Backward, Phase::Replay}) {
      events_.push_back(
          {{"ph", "M"},
           {"pid", process_},
           {"tid", line_of(phase)},
           {"name", "thread_name"},
           {"args", {{"name", recals::name_of(phase)}}}});
    }
  }

  static int line_of(Phase phase) {
    return static_cast<int>(phase) + 1;
  }

  void counter(double when, const std::string& device, int64_t bytes) {
    events_.push_back(
        {{"ph", "C"},
         {"pid", process_},
         {"ts", when},
         {"name", "activation memory on " + device},
         {"args", {{"bytes", bytes}}}});
  }

  void slice(double begin, double end, const Place& place) {
    events_.push_back(
        {{"ph", "X"},
         {"pid", process_},
         {"tid", line_of(place.phase)},
         {"ts", begin},
         {"dur", end - begin},
         {"name", place.op},
         {"args", {{"module", place.module}, {"where", place.where}}}});
  }

  const int process_;
  Json& events_;
};

} // namespace

std::string trace_of(const Job& job) {
  if (!job.analysis || job.sized.empty()) {
    throw BadInput("there is no memory to trace before the pass 'sizes'");
  }
  Json events = Json::array();
  Track(1, events).run("plain", recals::report_of(*job.analysis));
  if (job.planned) {
    Track(2, events).run("planned", recals::report_of(*job.analysis, *job.planned));
  }
  // Names come from source files: bytes that are no UTF-8 must not throw here.
  const Json document = {{"traceEvents", events}, {"displayTimeUnit", "ms"}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace recals::opt
