#include "passes/boundaries/boundaries.h"

#include <map>
#include <set>

#include <torch/csrc/jit/passes/constant_pooling.h>

#include "runtime/ops.h"

namespace recals {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

class Boundaries {
 public:
  Boundaries(const std::shared_ptr<Graph>& graph, const Program& program, const DryRun& sizes, const plan::Plan& plan)
      : shared_(graph), graph_(*graph), program_(program), sizes_(sizes), plan_(plan) {}

  bool run() {
    if (plan_.regions.empty()) {
      return false;
    }
    mark_recomputed();
    mark_kept();
    for (size_t r = 0; r < plan_.regions.size(); ++r) {
      // Marks stand after their node, so the region ends after the marks of its last one.
      auto* first = node_of(plan_.regions[r].first);
      auto* last = last_of(plan_.regions[r].last);
      const auto name = "region_" + std::to_string(r);
      auto* begin = graph_.create(ops::region, {constant(name)}, 0);
      begin->insertBefore(first);
      auto* end = graph_.create(ops::end_region, 0);
      end->insertAfter(last);
    }
    torch::jit::ConstantPooling(shared_);
    graph_.lint();
    return true;
  }

 private:
  Node* node_of(int index) const {
    return const_cast<Node*>(program_.nodes.at(index).source);
  }

  /// The last of the node, what unpacks its list, and its marks.
  Node* last_of(int index) const {
    auto* node = node_of(index);
    while (node->next()->kind() == c10::prim::ListUnpack || is_mark(node->next())) {
      node = node->next();
    }
    return node;
  }

  bool recomputed(int storage) const {
    return plan_.choices[storage].fate == plan::Fate::Recompute && sizes_.step.storages[storage].recomputable;
  }

  void mark_recomputed() {
    std::vector<bool> saved(sizes_.step.storages.size(), false);
    for (const auto& slot : sizes_.step.slots) {
      saved[slot.storage] = true;
    }
    std::map<int, std::map<int, int64_t>> internals; // node -> number -> bytes
    for (size_t s = 0; s < saved.size(); ++s) {
      if (!saved[s] || !recomputed(static_cast<int>(s))) {
        continue;
      }
      const auto& origin = sizes_.origins[s];
      const int64_t bytes = sizes_.step.storages[s].bytes;
      if (origin.reg >= 0) {
        mark(value_of(origin.reg), ops::recompute, {bytes});
      } else {
        internals[origin.node][origin.internal] = bytes;
      }
    }
    for (const auto& [node, numbers] : internals) {
      std::vector<int64_t> list;
      int64_t bytes = 0;
      for (const auto& [number, size] : numbers) {
        list.push_back(number);
        bytes += size;
      }
      mark(value_of(program_.nodes[node].outputs.at(0)), ops::recompute_internal, {list, bytes});
    }
  }

  /// What replays read and what is not recomputed: made inside a region or not, it is held.
  void mark_kept() {
    std::set<int> replayed(plan_.predicted.replayed.begin(), plan_.predicted.replayed.end());
    // Views on recomputed storages are made again with them.
    std::vector<int> todo(replayed.begin(), replayed.end());
    std::set<int> seen(replayed);
    std::set<int> marked;
    while (!todo.empty()) {
      const int n = todo.back();
      todo.pop_back();
      for (int reg : program_.nodes[n].inputs) {
        const int producer = program_.registers[reg].producer;
        if (producer < 0) {
          continue;
        }
        const int storage = sizes_.register_storage[reg];
        if (storage >= 0 && recomputed(storage)) {
          if (seen.insert(producer).second) {
            todo.push_back(producer);
          }
        } else if (marked.insert(reg).second) {
          const bool shows = storage >= 0 && sizes_.origins[storage].reg == reg;
          mark(value_of(reg), ops::keep, {shows ? sizes_.step.storages[storage].bytes : int64_t{0}});
        }
      }
    }
  }

  Value* value_of(int reg) const {
    return const_cast<Value*>(program_.registers[reg].value);
  }

  static bool is_mark(const Node* node) {
    return node->kind() == ops::keep || node->kind() == ops::recompute || node->kind() == ops::recompute_internal;
  }

  Value* constant(const c10::IValue& value) {
    torch::jit::WithInsertPoint top(*graph_.nodes().begin());
    return graph_.insertConstant(value);
  }

  void mark(Value* value, c10::Symbol op, const std::vector<c10::IValue>& arguments) {
    // A value with a mark goes on as the mark's output.
    for (size_t i = 0; i < value->uses().size(); ++i) {
      auto* user = value->uses()[i].user;
      if (is_mark(user)) {
        value = user->output();
        i = static_cast<size_t>(-1);
      }
    }
    std::vector<Value*> inputs{value};
    for (const auto& argument : arguments) {
      inputs.push_back(constant(argument));
    }
    auto* node = graph_.create(op, inputs, 1);
    node->output()->setType(c10::TensorType::get());
    node->copyMetadata(value->node());
    auto* after = value->node();
    while (after->next()->kind() == c10::prim::ListUnpack || is_mark(after->next())) {
      after = after->next();
    }
    node->insertAfter(after);
    node->output()->setDebugName(value->debugName());
    value->replaceAllUsesAfterNodeWith(node, node->output());
  }

  std::shared_ptr<Graph> shared_;
  Graph& graph_;
  const Program& program_;
  const DryRun& sizes_;
  const plan::Plan& plan_;
};

} // namespace

bool insert_boundaries(
    const std::shared_ptr<Graph>& graph,
    const Program& program,
    const DryRun& sizes,
    const plan::Plan& plan) {
  return Boundaries(graph, program, sizes, plan).run();
}

bool remove_boundaries(Graph& graph) {
  bool changed = false;
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    auto* node = *it++;
    const auto kind = node->kind();
    if (kind == ops::keep || kind == ops::recompute || kind == ops::recompute_internal) {
      node->output()->replaceAllUsesWith(node->input(0));
    } else if (kind != ops::region && kind != ops::end_region) {
      continue;
    }
    node->destroy();
    changed = true;
  }
  return changed;
}

} // namespace recals
