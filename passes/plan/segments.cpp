#include "passes/plan/segments.h"

#include <numeric>

namespace recals::plan {

std::vector<uint8_t> crossing(const StepIndex& index, int segments, double slack) {
  // crosses[n]: bytes made before node n and read by it or later.
  std::vector<int64_t> crosses(index.nodes + 1, 0);
  std::vector<double> saved(index.nodes + 1, 0);
  for (int s = 0; s < index.storages; ++s) {
    crosses[index.producer[s] + 1] += index.bytes[s];
    crosses[index.last_read[s] + 1] -= index.bytes[s];
    if (index.slots[s] > 0) {
      saved[index.producer[s] + 1] += static_cast<double>(index.bytes[s]);
    }
  }
  std::partial_sum(crosses.begin(), crosses.end(), crosses.begin());
  std::partial_sum(saved.begin(), saved.end(), saved.begin());

  std::vector<uint8_t> result(index.storages, 0);
  int begin = 1;
  for (int k = 1; k < segments; ++k) {
    const double low = saved.back() * (k - slack) / segments;
    const double high = saved.back() * (k + slack) / segments;
    int cut = -1;
    for (int n = begin; n < index.nodes && saved[n] <= high; ++n) {
      if (saved[n] >= low && (cut < 0 || crosses[n] < crosses[cut])) {
        cut = n;
      }
    }
    if (cut < 0) {
      continue;
    }
    begin = cut + 1;
    for (int s = 0; s < index.storages; ++s) {
      result[s] |= index.producer[s] < cut && index.last_read[s] >= cut;
    }
  }
  return result;
}

} // namespace recals::plan
