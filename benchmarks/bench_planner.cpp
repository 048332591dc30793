/// What planning costs, by the size of the step and by the budget.
///
///   cmake --preset release -DRECALS_BUILD_BENCHMARKS=ON && ninja -C build/release bench_planner
///   build/release/benchmarks/bench_planner
///
/// `extra` is what the plan costs, in forwards; `peak` its share of the plain peak.

#include <benchmark/benchmark.h>

#include "passes/plan/incremental.h"
#include "passes/plan/pareto.h"
#include "passes/plan/planner.h"
#include "passes/plan/simulator.h"
#include "test/core/families.h"

namespace recals::plan {
namespace {

StepGraph network(int64_t layers) {
  return test::transformer({static_cast<int>(layers), 2048, 512, 1024, true, -1});
}

int64_t plain_peak(const StepGraph& graph) {
  return simulate(graph, std::vector<Choice>(graph.storages.size())).peak[0].bytes;
}

void plan_for_a_budget(benchmark::State& state) {
  const StepGraph graph = network(state.range(0));
  const int64_t peak = plain_peak(graph);
  const std::vector<int64_t> budgets{peak * state.range(1) / 100};
  double forward = 0;
  for (const Node& node : graph.nodes) {
    forward += node.seconds;
  }
  Plan plan;
  for (auto _ : state) {
    auto result = choose(graph, budgets);
    if (!std::holds_alternative<Plan>(result)) {
      state.SkipWithError("no plan fits");
      return;
    }
    plan = std::get<Plan>(std::move(result));
  }
  state.counters["nodes"] = static_cast<double>(graph.nodes.size());
  state.counters["extra"] = plan.predicted.extra_seconds() / forward;
  state.counters["peak"] = static_cast<double>(plan.predicted.peak[0].bytes) / static_cast<double>(peak);
}
// 149, 1013, 10001 and 100001 nodes.
BENCHMARK(plan_for_a_budget)
    ->Unit(benchmark::kSecond)
    ->ArgNames({"layers", "percent"})
    ->Args({12, 80})
    ->Args({12, 50})
    ->Args({12, 25})
    ->Args({84, 80})
    ->Args({84, 50})
    ->Args({84, 25})
    ->Args({833, 50})
    ->Iterations(1);
BENCHMARK(plan_for_a_budget)
    ->Name("plan_for_a_budget/huge")
    ->Unit(benchmark::kSecond)
    ->ArgNames({"layers", "percent"})
    ->Args({8333, 50})
    ->Iterations(1);

void whole_curve(benchmark::State& state) {
  const StepGraph graph = network(state.range(0));
  size_t points = 0;
  for (auto _ : state) {
    points = pareto(graph).points.size();
  }
  state.counters["points"] = static_cast<double>(points);
}
BENCHMARK(whole_curve)->Unit(benchmark::kSecond)->ArgName("layers")->Arg(12)->Iterations(1);

std::vector<Choice> half_dropped(const StepGraph& graph) {
  std::vector<Choice> choices(graph.storages.size());
  for (size_t s = 0; s < choices.size(); s += 2) {
    choices[s] = Fate::Recompute;
  }
  return choices;
}

void simulate_a_step(benchmark::State& state) {
  const StepGraph graph = network(state.range(0));
  const std::vector<Choice> choices = half_dropped(graph);
  Simulator simulator(graph);
  for (auto _ : state) {
    simulator.run(choices);
    benchmark::DoNotOptimize(simulator.peak().data());
  }
}
BENCHMARK(simulate_a_step)->ArgName("layers")->Arg(12)->Arg(84)->Arg(833);

/// What the search does most: change a choice, look at the violation, take it back.
void change_and_undo(benchmark::State& state) {
  const StepGraph graph = network(state.range(0));
  const StepIndex index(graph);
  IncrementalSimulator step(index, {plain_peak(graph) / 2});
  step.set_choices(half_dropped(graph));
  int s = 0;
  for (auto _ : state) {
    step.change({{s, step.choice(s).fate == Fate::Keep ? Fate::Recompute : Fate::Keep}});
    benchmark::DoNotOptimize(step.violation());
    step.undo();
    s = (s + 17) % index.storages;
  }
}
BENCHMARK(change_and_undo)->ArgName("layers")->Arg(12)->Arg(84)->Arg(833);

} // namespace
} // namespace recals::plan

BENCHMARK_MAIN();
