#include "passes/graph/functionalise.h"

#include <algorithm>

#include "runtime/ops.h"

namespace recals {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

const std::string kAten = "aten::";
const std::string kOnCopy = "recals::";

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

} // namespace

std::string out_of_place(const std::string& op) {
  static const std::unordered_set<std::string> without_twin = {
      // Draws, whose twins allocate differently.
      "aten::bernoulli_",
      "aten::uniform_",
      "aten::normal_",
      "aten::random_",
      "aten::exponential_",
      "aten::cauchy_",
      "aten::geometric_",
      "aten::log_normal_",
      // aten::copy has no derivative.
      "aten::copy_",
  };
  // What others write need not be what its name suggests.
  if (!starts_with(op, kAten) || op.back() != '_' || op.compare(op.size() - 2, 2, "__") == 0 ||
      without_twin.count(op) != 0) {
    return "";
  }
  const auto name = op.substr(kAten.size(), op.size() - kAten.size() - 1);
  const auto& on_copy = ops::on_copy();
  const bool other_derivative = std::find(on_copy.begin(), on_copy.end(), name) != on_copy.end();
  return (other_derivative ? kOnCopy : kAten) + name;
}

std::string in_place(const std::string& twin) {
  const auto colons = twin.find("::");
  const auto op = colons == std::string::npos ? "" : kAten + twin.substr(colons + 2) + "_";
  return !op.empty() && out_of_place(op) == twin ? op : "";
}

namespace {

const std::string kLayout = ".layout";

/// What reads the twin's result reads it through as_strided. Note [Views that are written]
const Value* read_in_layout(Graph& graph, Node* twin, const WrittenView& written) {
  const torch::jit::WithInsertPoint after(twin->next());
  auto* result = twin->output();
  auto* layout = graph.create(
      c10::Symbol::fromQualString("aten::as_strided"),
      {result, graph.insertConstant(written.sizes), graph.insertConstant(written.strides), graph.insertConstant({})});
  graph.insertNode(layout)->copyMetadata(twin);
  layout->output()->setType(c10::TensorType::get())->setDebugName(result->debugName() + kLayout);
  result->replaceAllUsesAfterNodeWith(layout, layout->output());
  return layout->output();
}

/// The node that `read_in_layout` has made for a value, if it has.
Node* layout_of(const Value* value) {
  for (const auto& use : value->uses()) {
    if (use.user->outputs().size() == 1 && use.user->output()->debugName() == value->debugName() + kLayout) {
      return use.user;
    }
  }
  return nullptr;
}

} // namespace

bool put_in_place(Graph& graph, const std::unordered_set<std::string>& names) {
  bool changed = false;
  std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  for (auto* node : nodes) {
    if (node->outputs().size() != 1 || names.count(node->output()->debugName()) == 0) {
      continue;
    }
    const auto op = in_place(node->kind().toQualString());
    if (!op.empty()) {
      auto* written = node->replaceWithNewSymbol(c10::Symbol::fromQualString(op))->output();
      node->destroy();
      if (auto* layout = layout_of(written)) {
        layout->output()->replaceAllUsesWith(written);
        layout->destroy();
      }
      changed = true;
    }
  }
  return changed;
}

std::unordered_set<std::string> functionalise(
    Graph& graph,
    const Candidates& candidates,
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
  std::unordered_set<std::string> names;
  std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  for (auto* node : nodes) {
    const auto candidate = candidates.find(node);
    if (candidate == candidates.end()) {
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
    const auto* written = node->output();
    const auto twin_op = out_of_place(node->kind().toQualString());
    auto* twin = node->replaceWithNewSymbol(c10::Symbol::fromQualString(twin_op));
    std::replace(aliases.begin(), aliases.end(), written, static_cast<const Value*>(twin->output()));
    storage_of[twin->output()] = storage;
    node->destroy();
    names.insert(twin->output()->debugName());
    if (candidate->second) {
      aliases.push_back(read_in_layout(graph, twin, *candidate->second));
      storage_of[aliases.back()] = storage;
    }
  }
  return names;
}

} // namespace recals
