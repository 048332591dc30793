#include "runtime/saved_slots.h"

#include <algorithm>
#include <unordered_set>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

namespace recals {

using torch::autograd::Node;

std::vector<Node*> nodes_made_since(const std::vector<at::Tensor>& outputs, uint64_t since) {
  std::vector<Node*> found;
  std::unordered_set<Node*> seen;
  std::vector<Node*> todo;
  auto add = [&](Node* node) {
    // AccumulateGrad carries the highest sequence number there is, and saves nothing.
    if (node != nullptr && node->sequence_nr() >= since && node->sequence_nr() != UINT64_MAX &&
        seen.insert(node).second) {
      todo.push_back(node);
    }
  };
  for (const auto& output : outputs) {
    if (output.defined()) {
      add(output.grad_fn().get());
    }
  }
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    found.push_back(node);
    for (const auto& edge : node->next_edges()) {
      add(edge.function.get());
    }
  }
  std::sort(found.begin(), found.end(), [](Node* a, Node* b) { return a->sequence_nr() < b->sequence_nr(); });
  return found;
}

bool visit_saved_slots(Node& node, const SlotVisitor& visit) {
  const auto& table = saved_slot_table();
  auto row = table.find(typeid(node));
  if (row == table.end()) {
    return false;
  }
  if (row->second != nullptr) {
    row->second(node, visit);
  }
  return true;
}

} // namespace recals
