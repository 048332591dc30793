#include "runtime/debug_info.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace recals {

namespace {

using c10::DebugInfoKind;
using c10::ThreadLocalDebugInfo;

using Entry = std::pair<DebugInfoKind, std::shared_ptr<c10::DebugInfoBase>>;

/// The last entry, taken off, if it is of `kind`.
std::optional<Entry> take(DebugInfoKind kind) {
  try {
    return Entry{kind, ThreadLocalDebugInfo::_pop(kind)};
  } catch (const c10::Error&) {
    return std::nullopt; // it is of another kind; there is no other way to ask
  }
}

/// Takes entries off from the last one on, until there is none, it is of a kind unknown here, or `until` is taken.
std::vector<Entry> take_off(DebugInfoKind own, const c10::DebugInfoBase* until) {
  const std::array kinds{
      own,
      DebugInfoKind(DebugInfoKind::PROFILER_STATE),
      DebugInfoKind(DebugInfoKind::PARAM_COMMS_INFO),
      DebugInfoKind(DebugInfoKind::PRODUCER_INFO),
      DebugInfoKind(DebugInfoKind::MOBILE_RUNTIME_INFO),
      DebugInfoKind(DebugInfoKind::INFERENCE_CONTEXT)};
  std::vector<Entry> taken;
  while (ThreadLocalDebugInfo::current() != nullptr) {
    std::optional<Entry> last;
    for (const auto kind : kinds) {
      if (!last) {
        last = take(kind);
      }
    }
    if (!last) {
      break;
    }
    taken.push_back(std::move(*last));
    if (taken.back().second.get() == until) {
      break;
    }
  }
  return taken;
}

void put_back(std::vector<Entry> taken) {
  for (; !taken.empty(); taken.pop_back()) {
    ThreadLocalDebugInfo::_push(taken.back().first, std::move(taken.back().second));
  }
}

} // namespace

void put_below(DebugInfoKind kind, const std::shared_ptr<c10::DebugInfoBase>& info) {
  auto above = take_off(kind, nullptr);
  ThreadLocalDebugInfo::_push(kind, info);
  put_back(std::move(above));
}

void take_out(DebugInfoKind kind, const c10::DebugInfoBase* info) {
  auto above = take_off(kind, info);
  if (!above.empty() && above.back().second.get() == info) {
    above.pop_back();
  }
  put_back(std::move(above));
}

} // namespace recals
