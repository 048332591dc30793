#include "passes/boundaries/boundaries.h"

#include <set>

#include <torch/csrc/jit/passes/constant_pooling.h>

#include "passes/plan/step_index.h"
#include "runtime/ops.h"

namespace recals {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

class Boundaries {
 public:
  Boundaries(const std::shared_ptr<Graph>& graph, const Program& program, const DryRun& sizes, const plan::Plan& plan)
      : shared_(graph), graph_(*graph), program_(program), sizes_(sizes), plan_(plan), choices_(plan.choices) {
    const plan::StepIndex index(sizes.step);
    for (size_t s = 0; s < choices_.size(); ++s) {
      choices_[s] = index.possible(static_cast<int>(s), choices_[s]);
    }
  }

  bool run() {
    if (plan_.regions.empty()) {
      return false;
    }
    mark_dropped();
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
    while (node->next()->kind() == c10::prim::ListUnpack || ops::is_mark(node->next()->kind())) {
      node = node->next();
    }
    return node;
  }

  const plan::Choice& choice(int storage) const {
    return choices_[storage];
  }

  bool dropped(int storage) const {
    return choice(storage).fate != plan::Fate::Keep;
  }

  bool packed_without_loss(int storage) const {
    return choice(storage).fate == plan::Fate::Pack && form_of(storage).lossless;
  }

  const plan::Pack& form_of(int storage) const {
    return sizes_.step.storages[storage].packs.at(choice(storage).pack);
  }

  void mark_dropped() {
    std::set<int> saved;
    for (const auto& slot : sizes_.step.slots) {
      saved.insert(slot.storage);
    }
    std::set<int> replays_read;
    for (int node : plan_.predicted.replayed) {
      const auto& reads = sizes_.step.nodes[node].reads;
      replays_read.insert(reads.begin(), reads.end());
    }
    for (int storage = 0; storage < static_cast<int>(choices_.size()); ++storage) {
      // What only a replay needs is recomputed without a mark.
      const bool marked = saved.count(storage) != 0 ||
          (replays_read.count(storage) != 0 && choice(storage).cache_from != plan::Choice::kAlways);
      if (dropped(storage) && marked) {
        mark_storage(storage);
      }
    }
  }

  /// The mark of a choice on the value that shows the storage, or on the output of the op that saved it unseen.
  void mark_storage(int storage) {
    const auto& origin = sizes_.origins[storage];
    const bool internal = origin.reg < 0;
    const auto& [fate, pack, cache_from] = choice(storage);
    std::vector<c10::IValue> arguments;
    if (internal) {
      arguments.push_back(std::vector<int64_t>{origin.internal});
    }
    if (fate == plan::Fate::Pack) {
      arguments.push_back(form_of(storage).kind);
    }
    arguments.push_back(sizes_.step.storages[storage].bytes);
    if (fate == plan::Fate::Pack) {
      arguments.push_back(form_of(storage).bytes);
    }
    if (fate != plan::Fate::Keep) {
      arguments.push_back(static_cast<int64_t>(cache_from));
    }
    const auto op = fate == plan::Fate::Pack ? (internal ? ops::pack_internal : ops::pack)
        : fate == plan::Fate::Recompute      ? (internal ? ops::recompute_internal : ops::recompute)
                                             : (internal ? ops::keep_internal : ops::keep);
    mark(value_of(internal ? program_.nodes[origin.node].outputs.at(0) : origin.reg), op, arguments);
  }

  /// What replays read and what is not dropped: made inside a region or not, it is held.
  void mark_kept() {
    const auto& replayed = plan_.predicted.replayed;
    // Views on dropped storages are made again with them.
    std::vector<int> todo(replayed.begin(), replayed.end());
    std::set<int> seen(todo.begin(), todo.end());
    std::set<int> marked;
    while (!todo.empty()) {
      const int n = todo.back();
      todo.pop_back();
      for (int reg : program_.nodes[n].inputs) {
        const int producer = program_.registers[reg].producer;
        const int storage = sizes_.register_storage[reg];
        if (producer < 0 || (storage >= 0 && packed_without_loss(storage) && sizes_.origins[storage].reg == reg)) {
          continue;
        }
        if (storage >= 0 && dropped(storage)) {
          if (seen.insert(producer).second) {
            todo.push_back(producer);
          }
        } else if (marked.insert(reg).second) {
          const bool shows = storage >= 0 && sizes_.origins[storage].reg == reg;
          mark(value_of(reg), ops::keep, {shows ? sizes_.step.storages[storage].bytes : int64_t{0}});
        }
      }
    }
    for (size_t i = 0; i < replayed.size(); ++i) {
      for (int storage : sizes_.step.nodes[replayed[i]].recipe.reads) {
        if (plan_.predicted.by_recipe[i] && !dropped(storage)) {
          mark_storage(storage);
        }
      }
    }
  }

  Value* value_of(int reg) const {
    return const_cast<Value*>(program_.registers[reg].value);
  }

  Value* constant(const c10::IValue& value) {
    torch::jit::WithInsertPoint top(*graph_.nodes().begin());
    return graph_.insertConstant(value);
  }

  void mark(Value* value, c10::Symbol op, const std::vector<c10::IValue>& arguments) {
    // A value with a mark goes on as the mark's output.
    for (size_t i = 0; i < value->uses().size(); ++i) {
      auto* user = value->uses()[i].user;
      if (ops::is_mark(user->kind())) {
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
    while (after->next()->kind() == c10::prim::ListUnpack || ops::is_mark(after->next()->kind())) {
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
  std::vector<plan::Choice> choices_; ///< as they count
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
    if (ops::is_mark(kind)) {
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
