/// Each clause of passes/verify, broken on purpose.

#include <gtest/gtest.h>

#include "passes/lower/lower.h"
#include "passes/verify/verify.h"
#include "runtime/ops.h"
#include "test/unit/step.h"

namespace recals::testing {
namespace {

using torch::jit::Graph;
using torch::jit::Node;

class Verify : public ::testing::Test {
 protected:
  Verify()
      : module(module_of(
            {{"w", {16, 16}}},
            "def forward(self, x):\n"
            "  y = torch.tanh(torch.matmul(x, self.w))\n"
            "  return torch.matmul(torch.sigmoid(y), self.w)\n")),
        analysis(analyse(module, "forward", {at::randn({8, 16})})),
        graph(analysis.flat.graph->copy()) {
    const auto numbering = Program::compile(graph);
    insert_boundaries(graph, *numbering, analysis.sizes, plan_that_drops(analysis, everything));
  }

  Node* find(c10::Symbol kind) const {
    for (auto* node : graph->nodes()) {
      if (node->kind() == kind) {
        return node;
      }
    }
    return nullptr;
  }

  void expect_broken(const char* clause) {
    try {
      verify_boundaries(*graph);
      FAIL() << "clause " << clause << " did not notice";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("recals: ") + clause), std::string::npos) << error.what();
    }
  }

  torch::jit::Module module;
  Analysis analysis;
  std::shared_ptr<Graph> graph;
};

TEST_F(Verify, AGoodGraphPasses) {
  verify_flat(*analysis.flat.graph);
  verify_boundaries(*graph);
}

TEST_F(Verify, F1TheFirstInputIsTheModule) {
  graph->inputs()[0]->setType(c10::TensorType::get());
  expect_broken("F1");
}

TEST_F(Verify, F4OutputsAreTensors) {
  graph->registerOutput(graph->inputs()[0]);
  expect_broken("F4");
}

TEST_F(Verify, B1RegionsEnd) {
  find(ops::end_region)->destroy();
  expect_broken("B1");
}

TEST_F(Verify, B1RegionsBegin) {
  find(ops::region)->destroy();
  expect_broken("B"); // its marks now stand outside, which is noticed first
}

TEST_F(Verify, B1RegionsAreNotEmpty) {
  auto* begin = find(ops::region);
  graph->create(ops::end_region, 0)->insertBefore(begin);
  graph->create(ops::region, {begin->input()}, 0)->insertBefore(begin->prev());
  expect_broken("B1");
}

TEST_F(Verify, B3NothingHasTwoMarks) {
  auto* mark = find(ops::recompute);
  auto* keep = graph->create(ops::keep, {mark->output(), mark->input(1)}, 1);
  keep->output()->setType(c10::TensorType::get());
  keep->insertAfter(mark);
  expect_broken("B3");
}

TEST_F(Verify, B4MarksFollowTheirValue) {
  auto* mark = find(ops::recompute);
  mark->moveBefore(find(ops::end_region));
  EXPECT_THROW(verify_boundaries(*graph), c10::Error);
}

TEST_F(Verify, B5PacksNameAPackerAndSaveBytes) {
  auto* mark = find(ops::recompute);
  torch::jit::WithInsertPoint top(*graph->nodes().begin());
  auto* bytes = graph->insertConstant(512);
  for (const auto& [form, packed] : {std::pair("no such form", 64), std::pair("where positive", 512)}) {
    auto* pack = graph->create(
        ops::pack,
        {mark->input(0), graph->insertConstant(form), bytes, graph->insertConstant(packed), graph->insertConstant(0)},
        1);
    pack->output()->setType(c10::TensorType::get());
    pack->insertBefore(mark);
    mark->output()->replaceAllUsesWith(pack->output());
    mark->destroy();
    mark = pack;
    expect_broken("B5");
  }
}

TEST_F(Verify, LoweredModulesKeepTheirPromises) {
  auto flat = analysis.flat;
  flat.graph = graph;
  const auto lowered = lower(module, "forward", flat, "{}");
  verify_lowered(lowered, "forward");
  EXPECT_THROW(verify_lowered(lowered, "other"), c10::Error);
  EXPECT_TRUE(is_lowered(lowered));
  EXPECT_EQ(plan_of(lowered), "{}");
  const auto plain = restore(lowered);
  EXPECT_FALSE(is_lowered(plain));
  // The very same tensor, not a copy.
  EXPECT_TRUE(plain.attr("w").toTensor().is_same(module.attr("w").toTensor()));
  EXPECT_TRUE(lowered.attr("w").toTensor().is_same(module.attr("w").toTensor()));
  EXPECT_THROW(lower(lowered, "forward", flat, "{}"), c10::Error);
}

} // namespace
} // namespace recals::testing
