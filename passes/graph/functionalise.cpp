#include "passes/graph/functionalise.h"

#include <algorithm>

namespace recals {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

std::string out_of_place(const std::string& op) {
  // In-place draws have twins of the same name that allocate differently; they stay as they are.
  static const std::unordered_set<std::string> draws = {
      "aten::bernoulli_",
      "aten::uniform_",
      "aten::normal_",
      "aten::random_",
      "aten::exponential_",
      "aten::cauchy_",
      "aten::geometric_",
      "aten::log_normal_"};
  // Their in-place derivatives are computed from the result, in other roundings; aten::copy has no derivative.
  static const std::unordered_set<std::string> others = {"aten::elu_", "aten::celu_", "aten::selu_", "aten::copy_"};
  if (others.count(op) != 0 || op.size() < 2 || op.back() != '_' || op.compare(op.size() - 2, 2, "__") == 0 ||
      draws.count(op) != 0) {
    return "";
  }
  return op.substr(0, op.size() - 1);
}

bool functionalise(
    Graph& graph,
    const std::unordered_set<Node*>& candidates,
    StorageOf storage_of,
    const std::unordered_set<const void*>& external) {
  auto used_after = [](const Value* value, const Node* node) {
    return std::any_of(value->uses().begin(), value->uses().end(), [&](const torch::jit::Use& use) {
      return use.user != node && use.user->isAfter(node);
    });
  };
  std::unordered_map<const void*, std::vector<const Value*>> on_storage;
  for (const auto& [value, storage] : storage_of) {
    on_storage[storage].push_back(value);
  }
  bool changed = false;
  std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  for (auto* node : nodes) {
    if (candidates.count(node) == 0) {
      continue;
    }
    const void* storage = storage_of.at(node->input(0));
    if (external.count(storage) != 0) {
      continue;
    }
    auto& aliases = on_storage[storage];
    const bool seen_later = std::any_of(aliases.begin(), aliases.end(), [&](const Value* alias) {
      const bool made_before = alias->node() != node && alias->node()->isBefore(node);
      return made_before && used_after(alias, node);
    });
    if (seen_later) {
      continue;
    }
    auto* twin = node->replaceWithNewSymbol(c10::Symbol::fromQualString(out_of_place(node->kind().toQualString())));
    std::replace(
        aliases.begin(),
        aliases.end(),
        static_cast<const Value*>(node->output()),
        static_cast<const Value*>(twin->output()));
    storage_of[twin->output()] = storage;
    node->destroy();
    changed = true;
  }
  return changed;
}

} // namespace recals
