#include "passes/plan/exhaustive.h"

#include "passes/plan/planner.h"

namespace recals::plan {

int64_t try_all(const StepIndex& index, const Options& options, Archive& archive) {
  std::vector<int64_t> limits(index.devices, kNoBudget);
  for (const int d : archive.devices()) {
    limits[d] = 1;
  }
  IncrementalSimulator step(index, limits);
  std::vector<std::vector<Choice>> of;
  std::vector<Change> changes;
  for (const int s : options.storages) {
    of.push_back(options.every(index, s));
    changes.push_back({s, of.back().front()});
  }
  step.change(changes);
  std::vector<size_t> at(of.size(), 0);
  for (bool more = true; more;) {
    archive.add(step);
    changes.clear();
    more = false;
    for (size_t i = 0; i < of.size() && !more; ++i) {
      at[i] = (at[i] + 1) % of[i].size();
      more = at[i] > 0;
      changes.push_back({options.storages[i], of[i][at[i]]});
    }
    step.change(changes);
  }
  archive.simplify(step, options);
  return step.work();
}

} // namespace recals::plan
