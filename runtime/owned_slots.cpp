#include "runtime/owned_slots.h"

namespace recals {

void for_each_owned_slot(
    const std::vector<at::Tensor>& outputs,
    uint64_t since,
    const std::vector<Shown>& shown,
    const std::function<void(const OwnedSlot&)>& visit) {
  std::vector<const c10::StorageImpl*> internals;
  for (auto* node : nodes_made_since(outputs, since)) {
    visit_saved_slots(*node, [&](torch::autograd::SavedVariable& saved, const char* member) {
      auto data = saved.get_raw_data(); // nothing if somebody else's hooks are on it
      if (!data || !data->defined() || !data->has_storage() || data->storage().nbytes() == 0) {
        return;
      }
      const auto* storage = data->storage().unsafeGetStorageImpl();
      for (const auto& candidate : shown) {
        const auto& tensor = *candidate.tensor;
        if (tensor.defined() && tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == storage) {
          visit({*data, candidate.reg, -1, saved, *node, member});
          return;
        }
      }
      // The slots hold their storages, so a pointer cannot have been reused.
      size_t number = 0;
      while (number < internals.size() && internals[number] != storage) {
        ++number;
      }
      if (number == internals.size()) {
        internals.push_back(storage);
      }
      visit({*data, -1, static_cast<int>(number), saved, *node, member});
    });
  }
}

} // namespace recals
