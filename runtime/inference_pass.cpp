#include "runtime/inference_pass.h"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/pass_manager.h>

#include "runtime/ops.h"

namespace recals {

namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

class Inliner {
 public:
  explicit Inliner(Graph& graph) : graph_(graph) {}

  /// `without_grad`: nothing in the block ever runs with gradients.
  bool run(Block* block, bool without_grad) {
    bool changed = false;
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      auto* node = *it++;
      if (is_mark(node)) {
        if (!node->outputs().empty()) {
          node->output()->replaceAllUsesWith(node->input(0));
        }
        node->destroy();
        changed = true;
      } else if (auto* method = method_of(node)) {
        changed = true;
        if (without_grad) {
          // What is inserted stands before `it`, so it is looked at in turn, from the first of it.
          auto* before = node->prev();
          replace(node, method);
          it = before->iterator();
          ++it;
        } else {
          beside(node, method);
        }
      } else {
        for (auto* inner : node->blocks()) {
          changed = run(inner, without_grad) || changed;
        }
      }
    }
    return changed;
  }

 private:
  static bool is_mark(const Node* node) {
    const auto kind = node->kind();
    return ops::is_mark(kind) || kind == ops::region || kind == ops::end_region;
  }

  /// The method that a call runs, if both can be known here.
  static Graph* method_of(const Node* node) {
    if (node->kind() != ops::checkpoint || node->input(2)->node()->kind() != c10::prim::ListConstruct) {
      return nullptr;
    }
    const auto type = node->input(0)->type()->cast<c10::ClassType>();
    const auto name = torch::jit::toIValue(node->input(1));
    auto* function = type && name ? type->findMethod(name->toStringRef()) : nullptr;
    auto* with_graph = function == nullptr ? nullptr : torch::jit::tryToGraphFunction(*function);
    return with_graph == nullptr ? nullptr : with_graph->graph().get();
  }

  Value* insert(const Node* node, Graph* method) {
    std::vector<Value*> arguments{const_cast<Node*>(node)->input(0)};
    for (auto* tensor : node->input(2)->node()->inputs()) {
      arguments.push_back(tensor);
    }
    return torch::jit::insertGraph(graph_, *method, arguments).at(0);
  }

  void replace(Node* node, Graph* method) {
    torch::jit::WithInsertPoint here(node);
    node->output()->replaceAllUsesWith(insert(node, method));
    node->destroy();
  }

  void beside(Node* node, Graph* method) {
    torch::jit::WithInsertPoint here(node);
    auto* grad = graph_.insertNode(graph_.create(c10::Symbol::fromQualString("aten::is_grad_enabled"), 1));
    grad->output()->setType(c10::BoolType::get());
    auto* branch = graph_.insertNode(graph_.create(c10::prim::If, {grad->output()}, 1));
    branch->output()->setType(node->output()->type());
    node->output()->replaceAllUsesWith(branch->output());
    auto* planned = branch->addBlock();
    auto* plain = branch->addBlock();
    node->moveBefore(planned->return_node());
    planned->registerOutput(node->output());
    {
      torch::jit::WithInsertPoint inside(plain);
      plain->registerOutput(insert(node, method));
    }
    run(plain, /*without_grad=*/true);
  }

  Graph& graph_;
};

const auto registered = torch::jit::registerPrePass([](std::shared_ptr<Graph>& graph) { inline_for_inference(graph); });

} // namespace

bool inline_for_inference(const std::shared_ptr<Graph>& graph) {
  return Inliner(*graph).run(graph->block(), /*without_grad=*/false);
}

} // namespace recals
