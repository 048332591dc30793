/// The executor with plans made by hand: every kind of slot, dropped and recomputed, gives the bits of the plain run.

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "runtime/counters.h"
#include "runtime/rng_state.h"
#include "test/unit/step.h"

namespace recals::testing {
namespace {

struct Case {
  const char* name;
  std::vector<std::pair<std::string, std::vector<int64_t>>> parameters;
  const char* source;
  std::vector<int64_t> input;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      // Slots that show graph values: relu saves its result, matmul both inputs.
      {"values",
       {{"w", {32, 32}}, {"v", {32, 32}}},
       "def forward(self, x):\n  return torch.relu(torch.matmul(torch.tanh(torch.matmul(x, self.w)), self.v))\n",
       {16, 32}},
      // linear on three dimensions saves a two-dimensional view.
      {"views",
       {{"w", {24, 32}}, {"b", {24}}, {"v", {8, 24}}},
       "def forward(self, x):\n"
       "  y = torch.linear(torch.sigmoid(torch.mul(x, 2.0)), self.w, self.b)\n"
       "  return torch.linear(torch.tanh(y), self.v, None)\n",
       {4, 5, 32}},
      // Masks and statistics that no value of the graph shows.
      {"internals",
       {{"w", {32, 32}}, {"g", {32}}, {"b", {32}}},
       "def forward(self, x):\n"
       "  y = torch.layer_norm(torch.matmul(x, self.w), [32], self.g, self.b)\n"
       "  return torch.matmul(torch.dropout(torch.gelu(y), 0.5, True), self.w)\n",
       {16, 32}},
      // A skip connection, and a value that two nodes save.
      {"shared",
       {{"w", {32, 32}}},
       "def forward(self, x):\n"
       "  y = torch.tanh(torch.matmul(x, self.w))\n"
       "  z = torch.mul(y, torch.sigmoid(y))\n"
       "  return torch.add(y, torch.matmul(z, self.w))\n",
       {16, 32}},
      // One op with several outputs, all views of one storage.
      {"chunks",
       {{"w", {32, 96}}},
       "def forward(self, x):\n"
       "  q, k, v = torch.chunk(torch.matmul(x, self.w), 3, -1)\n"
       "  return torch.mul(torch.sigmoid(q), torch.mul(torch.tanh(k), v))\n",
       {16, 32}},
      // What can be packed: two-valued noise, signs, booleans, positions.
      {"packs",
       {{"w", {32, 32}}, {"v", {16, 32}}},
       "def forward(self, x):\n"
       "  y = torch.relu(torch.matmul(x, self.w))\n"
       "  y = torch.masked_fill(torch.dropout(y, 0.25, True), torch.gt(y, 0.5), 1.0)\n"
       "  y = torch.matmul(torch.dropout(torch.relu(torch.tanh(y)), 0.5, True), self.w)\n"
       "  z, places = torch.max(torch.feature_dropout(torch.reshape(y, [2, 8, 4, 8]), 0.5, True), 2)\n"
       "  return torch.linear(torch.where(torch.lt(y, 0.0), torch.exp(y), torch.sigmoid(y)), self.v), z\n",
       {16, 32}},
      // A chain, for nested replays.
      {"chain",
       {{"w", {32, 32}}},
       "def forward(self, x):\n"
       "  y = torch.tanh(torch.matmul(x, self.w))\n"
       "  y = torch.sigmoid(torch.mul(torch.tanh(torch.dropout(torch.sigmoid(y), 0.5, True)), 2.0))\n"
       "  z = torch.relu(torch.gelu(torch.reshape(torch.dropout(torch.relu(y), 0.5, True), [-1])))\n"
       "  z = torch.exp(torch.tanh(torch.mul(torch.sigmoid(z), torch.tanh(z))))\n"
       "  return torch.matmul(torch.tanh(torch.reshape(z, [-1, 32])), self.w)\n",
       {16, 32}},
  };
  return all;
}

class EverySlot : public ::testing::TestWithParam<Case> {
 protected:
  EverySlot()
      : module(module_of(GetParam().parameters, GetParam().source)),
        input(at::randn(GetParam().input)),
        analysis(analyse(module, "forward", {input}, {.scratch = ScratchSource::Rules})),
        plain(Program::compile(analysis.flat.graph)) {}

  void expect_plain_bits(const StepResult& actual, const StepResult& expected) {
    ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
    for (size_t i = 0; i < actual.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(actual.gradients[i], expected.gradients[i])) << "gradient " << i;
    }
    EXPECT_TRUE(at::equal(actual.outputs[0], expected.outputs[0]));
    EXPECT_TRUE(at::equal(actual.draw, expected.draw));
  }

  /// Keeps, recomputes, packs, and retains from random nodes on.
  plan::Plan random_plan(std::mt19937& random) {
    const auto likely = random() % 4;
    const auto nested = random() % 2 == 0;
    return plan_of_choices(analysis, [&](const plan::Storage& storage) {
      plan::Choice choice;
      if (!storage.packs.empty() && random() % 3 == 0) {
        choice.fate = plan::Fate::Pack;
      } else if (random() % 4 <= likely) {
        choice.fate = plan::Fate::Recompute;
      }
      if (nested && random() % 2 == 0) {
        choice.cache_from = static_cast<int>(random() % (analysis.sizes.step.nodes.size() + 1)) - 1;
      }
      return choice;
    });
  }

  torch::jit::Module module;
  at::Tensor input;
  Analysis analysis;
  std::shared_ptr<const Program> plain;
};

TEST_P(EverySlot, IsRecomputedToTheSameBits) {
  const auto expected = run_step(module, plain, {input});
  reset_counters();
  const auto plan = plan_that_drops(analysis, everything);
  const auto actual = run_step(module, program_under(analysis, plan, false), {input});
  expect_plain_bits(actual, expected);
  EXPECT_GT(counters().dropped_slots.load(), 0);
  EXPECT_GT(counters().recomputed_nodes.load(), 0);
  EXPECT_EQ(actual.left, 0);
}

TEST_P(EverySlot, AloneIsRecomputedToTheSameBits) {
  const auto expected = run_step(module, plain, {input});
  for (size_t s = 0; s < analysis.sizes.step.storages.size(); ++s) {
    const auto& only = analysis.sizes.step.storages[s];
    SCOPED_TRACE(only.name);
    const auto plan = plan_that_drops(analysis, [&](const plan::Storage& storage) { return &storage == &only; });
    const auto actual = run_step(module, program_under(analysis, plan, false), {input});
    expect_plain_bits(actual, expected);
    EXPECT_EQ(actual.left, 0);
  }
}

TEST_P(EverySlot, NothingDroppedIsThePlainRun) {
  const auto expected = run_step(module, plain, {input});
  reset_counters();
  const auto actual = run_step(module, program_under(analysis, plan::keep_all(analysis.sizes.step), false), {input});
  expect_plain_bits(actual, expected);
  EXPECT_EQ(counters().dropped_slots.load(), 0);
  EXPECT_EQ(actual.peak, expected.peak);
}

TEST_P(EverySlot, IsMeasuredAsSimulated) {
  // Random plans: what the planner's simulator says, what the dry run on meta tensors counts, what the allocator sees.
  const auto expected = run_step(module, plain, {input});
  // The simulator lets a recomputed storage live until its slot is released; the engine first sums a bias' gradient.
  const int64_t bias = module.hasattr("b") ? module.attr("b").toTensor().nbytes() : 0;
  std::mt19937 random(7);
  for (int trial = 0; trial < 100; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const auto plan = random_plan(random);
    const auto dry =
        dry_run(program_under(analysis, plan, true), analysis.twin.value, analysis.inputs, analysis.targets);
    EXPECT_LE(dry.peak[0], plan.predicted.peak[0].bytes);
    EXPECT_LE(plan.predicted.peak[0].bytes, dry.peak[0] + bias);
    EXPECT_EQ(plan.predicted.held[0], dry.held[0]);
    reset_counters();
    const auto real = run_step(module, program_under(analysis, plan, false), {input});
    EXPECT_LE(real.peak, dry.peak[0]);
    EXPECT_EQ(real.left, 0);
    expect_plain_bits(real, expected);
    // Views aside, nodes run as often as simulated.
    EXPECT_EQ(
        counters().recomputed_nodes.load(),
        std::accumulate(plan.predicted.runs.begin(), plan.predicted.runs.end(), int64_t{0}));
    if (HasFailure()) {
      break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Slots, EverySlot, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.name);
});

class Executor : public ::testing::Test {
 protected:
  Executor()
      : module(module_of(
            {{"w", {16, 16}}},
            "def forward(self, x):\n"
            "  y = torch.tanh(torch.matmul(x, self.w))\n"
            "  return torch.matmul(torch.dropout(torch.sigmoid(y), 0.5, True), self.w)\n")),
        input(at::randn({8, 16})),
        analysis(analyse(module, "forward", {input}, {.scratch = ScratchSource::Rules})),
        dropping(program_under(analysis, plan_that_drops(analysis, everything), false)) {}

  at::Tensor forward() {
    at::manual_seed(3);
    return run(dropping, module._ivalue(), {input}).at(0).sum();
  }

  at::Tensor weight() {
    return module.attr("w").toTensor();
  }

  torch::jit::Module module;
  at::Tensor input;
  Analysis analysis;
  std::shared_ptr<const Program> dropping;
};

TEST_F(Executor, WithoutGradNothingIsSavedOrDropped) {
  at::NoGradGuard no_grad;
  reset_counters();
  EXPECT_FALSE(forward().requires_grad());
  EXPECT_EQ(counters().dropped_slots.load(), 0);
}

TEST_F(Executor, BackwardTwiceOverAKeptGraph) {
  auto loss = forward();
  auto first = torch::autograd::grad({loss}, {weight()}, {}, /*retain_graph=*/true).at(0);
  auto second = torch::autograd::grad({loss}, {weight()}, {}, /*retain_graph=*/true).at(0);
  auto third = torch::autograd::grad({loss}, {weight()}).at(0);
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_TRUE(at::equal(first, third));
}

TEST_F(Executor, DoubleBackward) {
  auto penalty = [&](const std::shared_ptr<const Program>& program) {
    at::manual_seed(3);
    auto loss = run(program, module._ivalue(), {input}).at(0).sum();
    auto gradient = torch::autograd::grad({loss}, {weight()}, {}, std::nullopt, /*create_graph=*/true).at(0);
    return torch::autograd::grad({gradient.square().sum()}, {weight()}).at(0);
  };
  EXPECT_TRUE(at::equal(penalty(dropping), penalty(Program::compile(analysis.flat.graph))));
}

TEST_F(Executor, AForwardWithoutBackwardLeavesNothing) {
  auto tracker = MemoryTracker::start(false);
  forward();
  const auto live = tracker->devices().at("cpu").live;
  tracker->stop();
  EXPECT_EQ(live, 0);
}

TEST_F(Executor, WhatAReplayReadsMustNotHaveChanged) {
  auto loss = forward();
  input.add_(1);
  try {
    loss.backward();
    FAIL() << "the change was not noticed";
  } catch (const c10::Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("recals: x was modified in place"), std::string::npos) << what;
    EXPECT_NE(what.find("(version 2, expected 1)"), std::string::npos) << what; // randn itself writes once
  }
}

TEST_F(Executor, APromiseThatIsBrokenIsAnErrorInTheForward) {
  // Claimed of the result of sigmoid, which has more than two values.
  auto claims = analysis;
  plan::Pack pack;
  pack.kind = "two values";
  pack.bytes = 32;
  for (auto& storage : claims.sizes.step.storages) {
    storage.packs = {pack};
  }
  const auto plan = plan_of_choices(claims, [](const plan::Storage& storage) -> plan::Choice {
    return storage.name == "%sigmoid" ? plan::Fate::Pack : plan::Fate::Keep;
  });
  const auto program = program_under(claims, plan, false);
  try {
    run(program, module._ivalue(), {input});
    FAIL() << "the third value was not noticed";
  } catch (const c10::Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("cannot be kept as 'two values': it holds a third value"), std::string::npos) << what;
    EXPECT_NE(what.find("sigmoid.1, saved by aten::sigmoid at"), std::string::npos) << what;
  }
  // The next step is none the worse for it.
  EXPECT_TRUE(at::equal(
      torch::autograd::grad({forward()}, {weight()}).at(0), torch::autograd::grad({forward()}, {weight()}).at(0)));
}

TEST_F(Executor, ADrawBetweenForwardAndBackwardIsUndisturbed) {
  auto loss = forward();
  auto before = at::rand({4});
  loss.backward();
  auto after = at::rand({4});
  at::manual_seed(3);
  run(Program::compile(analysis.flat.graph), module._ivalue(), {input});
  EXPECT_TRUE(at::equal(before, at::rand({4})));
  EXPECT_TRUE(at::equal(after, at::rand({4})));
}

TEST_F(Executor, OnlyRandomNodesThatAreRecomputedStoreTheirState) {
  // tanh alone needs no generator state; the mask does: 5 KB.
  auto held = [&](const char* name) {
    const auto plan = plan_that_drops(analysis, [&](const plan::Storage& s) { return s.name.rfind(name, 0) == 0; });
    const auto program = program_under(analysis, plan, false);
    auto tracker = MemoryTracker::start(false);
    auto outputs = run(program, module._ivalue(), {input});
    const auto live = tracker->devices().at("cpu").live;
    tracker->stop();
    return live;
  };
  const int64_t activation = 8 * 16 * 4;
  EXPECT_EQ(held("%dropout saved") - held("%nothing"), RngState::bytes(c10::kCPU) - activation);
}

} // namespace
} // namespace recals::testing
