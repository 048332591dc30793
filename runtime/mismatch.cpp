#include "runtime/mismatch.h"

#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include <ATen/core/class_type.h>

#include "runtime/budget_warning.h"
#include "runtime/counters.h"

namespace recals {

namespace {

OnMismatch wanted_by(const c10::IValue& module) {
  const auto& object = module.toObjectRef();
  const auto slot = object.type()->findAttributeSlot(kOnMismatchAttribute);
  return slot ? parse_on_mismatch(object.getSlot(*slot).toStringRef()) : OnMismatch::Warn;
}

/// Who was told what. Every rewritten module has a type of its own, which its replicas share; a type that is gone leaves
/// its address to another one.
class Told {
 public:
  /// Is it new?
  bool add(const c10::ClassTypePtr& type, Mismatch what) {
    const std::lock_guard lock(mutex_);
    for (auto entry = told_.begin(); entry != told_.end();) {
      entry = entry->second.type.expired() ? told_.erase(entry) : std::next(entry);
    }
    auto& entry = told_[type.get()];
    entry.type = type;
    return entry.what.insert(what).second;
  }

 private:
  struct Entry {
    std::weak_ptr<c10::ClassType> type;
    std::set<Mismatch> what;
  };
  std::mutex mutex_;
  std::unordered_map<const c10::ClassType*, Entry> told_;
};

/// Never destroyed: other threads may train while the process ends.
Told& told() {
  static auto* instance = new Told;
  return *instance;
}

} // namespace

OnMismatch parse_on_mismatch(const std::string& text) {
  if (text == "error") {
    return OnMismatch::Error;
  }
  if (text == "plain") {
    return OnMismatch::Plain;
  }
  TORCH_CHECK_VALUE(text == "warn", "recals: on_mismatch is 'warn', 'error' or 'plain', not '", text, "'");
  return OnMismatch::Warn;
}

void report_mismatch(const c10::IValue& module, Mismatch what, const std::string& text) {
  ++counters().mismatches;
  const auto wanted = wanted_by(module);
  TORCH_CHECK(wanted != OnMismatch::Error, text);
  if (wanted == OnMismatch::Warn && told().add(module.toObjectRef().type(), what)) {
    budget_warning(
        text +
        " This is said once for a module; recals.optimize(..., on_mismatch=\"error\") makes it an error, \"plain\" "
        "says "
        "nothing.");
  }
}

} // namespace recals
