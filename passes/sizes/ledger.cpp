#include "passes/sizes/ledger.h"

#include <utility>

namespace recals {

void LedgerWriter::begin(Phase phase, int node, int backward_op) {
  ledger_.moments.push_back({phase, node, backward_op, 0});
}

void LedgerWriter::add_seconds(double seconds) {
  if (!ledger_.moments.empty()) {
    ledger_.moments.back().seconds += seconds;
  }
}

void LedgerWriter::allocated(int64_t block, int device, int64_t bytes) {
  if (ledger_.moments.empty()) {
    begin(Phase::Forward, -1, -1);
  }
  const int moment = static_cast<int>(ledger_.moments.size()) - 1;
  const int allocation = static_cast<int>(ledger_.allocations.size());
  Allocation entry;
  entry.moment = moment;
  entry.device = device;
  entry.bytes = bytes;
  ledger_.allocations.push_back(entry);
  ledger_.events.push_back({moment, allocation, device, bytes});
  allocations_[block] = allocation;
}

void LedgerWriter::grown(int64_t block, int64_t extra) {
  const int allocation = allocations_.at(block);
  ledger_.allocations[allocation].bytes += extra;
  ledger_.events.push_back(
      {static_cast<int>(ledger_.moments.size()) - 1, allocation, ledger_.allocations[allocation].device, extra});
}

void LedgerWriter::freed(int64_t block) {
  const auto known = allocations_.find(block);
  if (known == allocations_.end()) {
    return;
  }
  const int allocation = known->second;
  const auto& entry = ledger_.allocations[allocation];
  ledger_.events.push_back({static_cast<int>(ledger_.moments.size()) - 1, allocation, entry.device, -entry.bytes});
  allocations_.erase(known);
}

void LedgerWriter::scratch(int device, int64_t bytes) {
  ledger_.events.push_back({static_cast<int>(ledger_.moments.size()) - 1, -1, device, bytes});
}

void LedgerWriter::is_storage(int64_t block, int storage) {
  if (const auto known = allocations_.find(block); known != allocations_.end()) {
    ledger_.allocations[known->second].storage = storage;
  }
}

void LedgerWriter::is_dtype(int64_t block, c10::ScalarType dtype) {
  const auto known = allocations_.find(block);
  // The first tensor on a storage says what it is; later views may show it otherwise.
  if (known != allocations_.end() && ledger_.allocations[known->second].dtype == c10::ScalarType::Undefined) {
    ledger_.allocations[known->second].dtype = dtype;
  }
}

void LedgerWriter::forward_ends() {
  ledger_.forward_events = ledger_.events.size();
  begin(Phase::Loss, -1, -1);
}

Ledger LedgerWriter::finish() {
  return std::exchange(ledger_, {});
}

} // namespace recals
