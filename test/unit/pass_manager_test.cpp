/// What torch's own pass manager sees, and what Recals' pass there does. Note [Passes that torch runs].

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "passes/lower/retype.h"
#include "passes/pipeline.h"
#include "runtime/counters.h"
#include "runtime/inference_pass.h"
#include "runtime/ops.h"
#include "test/unit/step.h"

namespace recals::testing {
namespace {

using torch::jit::Graph;
using torch::jit::Module;

constexpr const char* kSource =
    "def forward(self, x):\n"
    "  y = torch.tanh(torch.matmul(x, self.w))\n"
    "  y = torch.dropout(torch.sigmoid(y), 0.5, True)\n"
    "  z = torch.cumsum(torch.matmul(y, self.w), 0)\n" // which TorchScript does not differentiate by itself
    "  return torch.tanh(torch.matmul(torch.exp(torch.tanh(z)), self.w))\n";

Module net() {
  return module_of({{"w", {16, 16}}}, kSource);
}

Module rewritten(const Module& module) {
  return optimise(
      module,
      "forward",
      {at::randn({64, 16})},
      {.limits = {{"", {.kind = plan::Limit::Kind::Share, .bytes = 0, .fraction = 0.8}}}});
}

/// The ops of every graph that torch shows to a registered pass while `run` runs.
template <typename F>
std::set<std::string> seen_by_a_pass(F run) {
  std::set<std::string> seen;
  const auto id = torch::jit::registerPrePass([&](std::shared_ptr<Graph>& graph) {
    std::function<void(torch::jit::Block*)> look = [&](torch::jit::Block* block) {
      for (auto* node : block->nodes()) {
        seen.insert(node->kind().toQualString());
        for (auto* inner : node->blocks()) {
          look(inner);
        }
      }
    };
    look(graph->block());
  });
  run();
  torch::jit::clearPrePass(id);
  return seen;
}

void train(Module& module, const at::Tensor& x, int times = 3) {
  for (int i = 0; i < times; ++i) {
    torch::autograd::backward({module.forward({x}).toTensor().sum()});
  }
}

TEST(PassManager, WithoutGradientsAPassSeesTheWholeGraph) {
  auto module = net();
  const auto seen = seen_by_a_pass([&] {
    at::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      module.forward({at::randn({64, 16})});
    }
  });
  EXPECT_EQ(seen.count("aten::cumsum"), 1);
  EXPECT_EQ(seen.count("aten::tanh"), 1);
}

TEST(PassManager, InTrainingItSeesOnlyWhatTorchScriptDifferentiated) {
  auto module = net();
  const auto seen = seen_by_a_pass([&] { train(module, at::randn({64, 16})); });
  EXPECT_EQ(seen.count("aten::tanh"), 1) << "no subgraph was differentiated: the test shows nothing";
  EXPECT_EQ(seen.count("aten::cumsum"), 0);
}

TEST(PassManager, InTrainingItSeesNoStepOfARewrittenModule) {
  auto module = rewritten(net());
  const auto seen = seen_by_a_pass([&] { train(module, at::randn({64, 16})); });
  for (const char* op : {"recals::enter", "recals::checkpoint", "recals::recompute"}) {
    EXPECT_EQ(seen.count(op), 0) << op;
  }
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

/// A method that runs the planned step without asking recals::enter first.
torch::jit::Method direct_step(const Module& module) {
  auto graph = std::make_shared<Graph>();
  auto* self = graph->addInput("self")->setType(module.type());
  auto* x = graph->addInput("x")->setType(c10::TensorType::get());
  auto* name = graph->insertConstant("recals_forward_step");
  auto* list = graph->insertNode(graph->createList(c10::TensorType::get(), {x}))->output();
  auto* call = graph->insertNode(graph->create(ops::checkpoint, {self, name, list}, 1));
  graph->registerOutput(call->output()->setType(c10::ListType::ofTensors()));
  add_method(module, "direct", graph);
  return module.get_method("direct");
}

TEST(PassManager, RegionsRunWithoutGradientsAreInlined) {
  auto plain = net();
  auto module = rewritten(plain);
  auto step = direct_step(module);
  const auto x = at::randn({64, 16});
  at::Tensor result;
  {
    at::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      at::manual_seed(7);
      result = step({x}).toTensorVector().at(0);
    }
    const auto text = torch::jit::lastExecutedOptimizedGraph()->toString(false);
    EXPECT_GE(count(text, "aten::is_grad_enabled"), 1);
    EXPECT_GE(count(text, "aten::sigmoid"), 1) << text;
    EXPECT_EQ(count(text, "recals::recompute"), 0) << text;
    at::manual_seed(7);
    EXPECT_TRUE(at::equal(result, plain.forward({x}).toTensor()));
  }
  // The same optimised graph, now with gradients: the regions are regions again.
  reset_counters();
  torch::autograd::backward({step({x}).toTensorVector().at(0).sum()});
  EXPECT_GT(counters().recomputed_nodes.load(), 0);
}

TEST(PassManager, NothingToInlineChangesNothing) {
  auto graph = net().get_method("forward").graph()->copy();
  const auto before = graph->toString(false);
  EXPECT_FALSE(inline_for_inference(graph));
  EXPECT_EQ(graph->toString(false), before);
}

} // namespace
} // namespace recals::testing
