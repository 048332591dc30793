/// Several threads in Recals' own code: analysis, training, one module, one autograd graph, modules that come and go.
/// Small, since the thread sanitizer runs it, too (./dev sanitize); test/python/test_threads.py trains longer.

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <mutex>
#include <random>
#include <thread>

#include "runtime/counters.h"
#include "test/unit/step.h"

namespace recals::testing {
namespace {

constexpr int kThreads = 4;

/// Runs `work(0)`, `work(1)`, ... in threads that begin at once; an exception in one of them is a failure.
void in_threads(const std::function<void(int)>& work, int count = kThreads) {
  std::barrier together(count);
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      together.arrive_and_wait();
      try {
        work(t);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << t << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

/// Nothing random: values, views, statistics, masks, signs and a skip connection.
torch::jit::Module chain() {
  return module_of(
      {{"w", {16, 16}}, {"v", {16, 16}}, {"g", {16}}, {"b", {16}}},
      "def forward(self, x):\n"
      "  y = torch.relu(torch.matmul(x, self.w))\n"
      "  y = torch.layer_norm(torch.add(y, torch.tanh(torch.linear(y, self.v))), [16], self.g, self.b)\n"
      "  z = torch.gelu(torch.masked_fill(y, torch.gt(y, 0.5), 1.0))\n"
      "  return torch.matmul(torch.sigmoid(z), self.w), torch.exp(torch.tanh(y))\n");
}

/// Made before threads begin: their parameters come from the one generator that all threads share.
std::vector<torch::jit::Module> chains(int count) {
  std::vector<torch::jit::Module> modules;
  std::generate_n(std::back_inserter(modules), count, chain);
  return modules;
}

at::Tensor input_of(int number) {
  return at::arange(8 * 16, at::kFloat).reshape({8, 16}).mul(0.01 * (number + 1)).sin();
}

std::vector<at::Tensor> parameters_of(const torch::jit::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    parameters.push_back(parameter);
  }
  return parameters;
}

at::Tensor loss_of(const std::vector<at::Tensor>& outputs) {
  at::Tensor loss;
  for (const auto& output : outputs) {
    loss = loss.defined() ? loss + output.sum() : output.sum();
  }
  return loss;
}

std::vector<at::Tensor> gradients_of(
    const torch::jit::Module& module,
    const std::shared_ptr<const Program>& program,
    const at::Tensor& input) {
  return torch::autograd::grad({loss_of(run(program, module._ivalue(), {input}))}, parameters_of(module));
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return x.equal(y); });
}

/// Packs what can be packed and recomputes the rest.
plan::Choice tightest(const plan::Storage& storage) {
  return storage.packs.empty() ? plan::Fate::Recompute : plan::Fate::Pack;
}

/// Any fate for each storage, and replays in replays: what a replay retains is bounded at random.
plan::Plan any_plan(const Analysis& analysis, std::mt19937& random) {
  const auto below = [&](size_t count) { return static_cast<int>(random() % count); };
  return plan_of_choices(analysis, [&](const plan::Storage& storage) {
    plan::Choice choice = below(4) == 0 ? plan::Fate::Keep : plan::Fate::Recompute;
    if (!storage.packs.empty() && below(2) == 0) {
      choice.fate = plan::Fate::Pack;
      choice.pack = below(storage.packs.size());
    }
    if (below(2) == 0) {
      choice.cache_from = below(analysis.sizes.step.nodes.size() + 1) - 1;
    }
    return choice;
  });
}

struct Prepared {
  torch::jit::Module module;
  Analysis analysis = analyse(module, "forward", {input_of(0)});
  std::shared_ptr<const Program> plain = Program::compile(analysis.flat.graph);
  std::shared_ptr<const Program> program = program_under(analysis, plan_of_choices(analysis, tightest), false);
};

TEST(Threads, AnalyseAndTrainEachItsOwnModule) {
  const Prepared reference{chain()};
  std::vector<std::vector<at::Tensor>> expected;
  for (int number = 0; number < kThreads; ++number) {
    expected.push_back(gradients_of(reference.module, reference.plain, input_of(number)));
  }
  const auto modules = chains(kThreads);
  in_threads([&](int thread) {
    const Prepared own{modules[thread]};
    EXPECT_EQ(own.analysis.sizes.peak, reference.analysis.sizes.peak);
    for (int number = 0; number < kThreads; ++number) {
      EXPECT_TRUE(same(gradients_of(own.module, own.program, input_of(number)), expected[number]));
    }
  });
}

TEST(Threads, ShareAModule) {
  const Prepared shared{chain()};
  const auto expected = gradients_of(shared.module, shared.plain, input_of(1));
  reset_counters();
  gradients_of(shared.module, shared.program, input_of(1));
  const auto once = counters().recomputed_nodes.load();
  reset_counters();
  in_threads([&](int) {
    for (int step = 0; step < 10; ++step) {
      EXPECT_TRUE(same(gradients_of(shared.module, shared.program, input_of(1)), expected));
    }
  });
  EXPECT_EQ(counters().recomputed_nodes.load(), 10 * kThreads * once);
}

TEST(Threads, EightTrainUnderRandomPlans) {
  constexpr int kTrainers = 8;
  constexpr int kPlans = 20;
  constexpr int kSteps = 200 / kPlans; // with each
  const Prepared shared{chain()};
  std::vector<std::vector<at::Tensor>> expected;
  for (int number = 0; number < kSteps; ++number) {
    expected.push_back(gradients_of(shared.module, shared.plain, input_of(number)));
  }
  reset_counters();
  in_threads(
      [&](int thread) {
        std::mt19937 random(thread);
        auto tracker = MemoryTracker::start(false);
        for (int round = 0; round < kPlans; ++round) {
          const auto program = program_under(shared.analysis, any_plan(shared.analysis, random), false);
          for (int number = 0; number < kSteps; ++number) {
            const auto input = input_of(number);
            const auto before = tracker->live()["cpu"];
            EXPECT_TRUE(same(gradients_of(shared.module, program, input), expected[number]));
            EXPECT_EQ(tracker->live()["cpu"], before);
          }
        }
        tracker->stop();
      },
      kTrainers);
  EXPECT_GT(counters().packs.load(), kTrainers);
  EXPECT_GT(counters().recomputed_nodes.load(), kTrainers * 200);
}

TEST(Threads, GradientsOfGradients) {
  const Prepared shared{chain()};
  const auto parameters = parameters_of(shared.module);
  const auto penalty = [&](const std::shared_ptr<const Program>& program) {
    const auto loss = loss_of(run(program, shared.module._ivalue(), {input_of(1)}));
    const auto first = torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/true, /*create_graph=*/true);
    at::Tensor norm = at::zeros({});
    for (const auto& gradient : first) {
      norm = norm + gradient.square().sum();
    }
    return torch::autograd::grad({norm}, parameters);
  };
  const auto expected = penalty(shared.plain);
  in_threads([&](int) {
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(same(penalty(shared.program), expected));
    }
  });
}

TEST(Threads, ErrorsInTheMiddleLeaveNothing) {
  const Prepared shared{chain()};
  const auto parameters = parameters_of(shared.module);
  const auto expected = gradients_of(shared.module, shared.plain, input_of(3));
  in_threads([&](int thread) {
    auto tracker = MemoryTracker::start(false);
    const auto input = input_of(3);
    const auto before = tracker->live()["cpu"];
    for (int round = 0; round < 5; ++round) {
      // Of the backward: the first output's part has replayed when the second's fails.
      {
        auto outputs = run(shared.program, shared.module._ivalue(), {input});
        const auto loss = outputs[0].sum() + outputs[1].sum();
        outputs[(thread + round) % 2].register_hook([](const at::Tensor&) { TORCH_CHECK(false, "on purpose"); });
        outputs.clear();
        EXPECT_THROW(torch::autograd::grad({loss}, parameters), c10::Error);
      }
      // Of a replay: what it reads has changed.
      {
        const auto changed = input.clone();
        const auto loss = loss_of(run(shared.program, shared.module._ivalue(), {changed}));
        changed.add_(1);
        EXPECT_THROW(torch::autograd::grad({loss}, parameters), c10::Error);
      }
      // Of the forward: the shapes do not fit, after some nodes.
      EXPECT_THROW(run(shared.program, shared.module._ivalue(), {at::ones({8, 15})}), c10::Error);
      // What a failed backward leaves with the engine goes with the next one.
      EXPECT_TRUE(same(gradients_of(shared.module, shared.program, input), expected));
      EXPECT_EQ(tracker->live()["cpu"], before);
    }
    tracker->stop();
  });
}

TEST(Threads, WalkOneGraph) {
  const Prepared shared{chain()};
  const auto parameters = parameters_of(shared.module);
  const auto expected = gradients_of(shared.module, shared.plain, input_of(1));
  for (int round = 0; round < 5; ++round) {
    auto outputs = run(shared.program, shared.module._ivalue(), {input_of(1)});
    const auto loss = loss_of(outputs);
    outputs.clear();
    in_threads([&](int) {
      for (int walk = 0; walk < 4; ++walk) {
        EXPECT_TRUE(same(torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/true), expected));
      }
    });
  }
}

TEST(Threads, LetGoOfSlotsWhileAnotherReplays) {
  const Prepared shared{chain()};
  const auto parameters = parameters_of(shared.module);
  auto gradient = [&](const at::Tensor& output) { return torch::autograd::grad({output.sum()}, {parameters[0]})[0]; };
  const auto expected = gradient(run(shared.plain, shared.module._ivalue(), {input_of(1)})[0]);
  auto tracker = MemoryTracker::start(false);
  for (int round = 0; round < 50; ++round) {
    const auto before = tracker->live()["cpu"];
    auto outputs = run(shared.program, shared.module._ivalue(), {input_of(1)});
    auto first = std::move(outputs[0]);
    auto second = std::move(outputs[1]);
    outputs.clear();
    std::barrier together(2);
    std::thread other([&] {
      together.arrive_and_wait();
      second.reset();
    });
    together.arrive_and_wait();
    EXPECT_TRUE(gradient(first).equal(expected));
    other.join();
    first.reset();
    EXPECT_EQ(tracker->live()["cpu"], before) << "round " << round;
  }
  tracker->stop();
}

TEST(Threads, BackwardsElsewhereThanTheForwards) {
  const Prepared shared{chain()};
  const auto parameters = parameters_of(shared.module);
  const auto expected = gradients_of(shared.module, shared.plain, input_of(2));
  std::vector<at::Tensor> losses;
  std::mutex mutex;
  in_threads([&](int) {
    for (int step = 0; step < 10; ++step) {
      auto loss = loss_of(run(shared.program, shared.module._ivalue(), {input_of(2)}));
      {
        const std::lock_guard<std::mutex> lock(mutex);
        losses.push_back(std::move(loss));
        loss = losses.front();
        losses.erase(losses.begin());
      }
      EXPECT_TRUE(same(torch::autograd::grad({loss}, parameters), expected));
    }
  });
}

TEST(Threads, RewriteModulesThatComeAndGo) {
  // Calls go through recals::checkpoint, whose table of programs all modules share.
  const Prepared reference{chain()};
  const auto expected = gradients_of(reference.module, reference.plain, input_of(0));
  auto modules = chains(3 * kThreads);
  in_threads([&](int thread) {
    for (int round = 0; round < 3; ++round) {
      const auto module = std::move(modules[3 * thread + round]);
      const plan::Limit limit{plan::Limit::Kind::Share, 0, 0.9 + 0.02 * thread};
      auto rewritten = optimise(module, "forward", {input_of(0)}, {.limits = {{"", limit}}});
      const auto outputs = rewritten.forward({input_of(0)}).toTupleRef().elements();
      const auto loss = loss_of({outputs[0].toTensor(), outputs[1].toTensor()});
      EXPECT_TRUE(same(torch::autograd::grad({loss}, parameters_of(rewritten)), expected));
    }
  });
}

} // namespace
} // namespace recals::testing
