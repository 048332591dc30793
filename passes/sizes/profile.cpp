#include "passes/sizes/profile.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <deque>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "passes/graph/specialise.h"
#include "runtime/call_node.h"
#include "runtime/executor.h"
#include "runtime/observer.h"
#include "runtime/rng_state.h"

namespace recals {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since_start() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Stands still while others have the processor.
double seconds_of_this_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

constexpr int kLeastRuns = 2;
constexpr int kMostRuns = 10;
constexpr std::chrono::milliseconds kEnough(500);

/// So many bytes of results are held back, more than caches have: a step writes to memory that is in no cache, and a run
/// that let go of everything at once would write to the same few blocks again and again.
constexpr int64_t kHeldBytes = int64_t{1} << 26;

/// The clock at the borders of the nodes. A device that works on its own is waited for.
class Stopwatch : public Observer {
 public:
  Stopwatch(size_t nodes, c10::Device device)
      : least_(nodes, 0),
        device_(device),
        now_(device.is_cpu() && at::get_num_threads() == 1 ? &seconds_of_this_thread : &seconds_since_start) {}

  void run_begins(const std::vector<at::Tensor>&) override {}
  void node_begins(int) override {
    wait();
    start_ = now_();
  }
  void node_ends(int node, const std::vector<at::Tensor>& outputs) override {
    wait();
    const double seconds = now_() - start_;
    least_[node] = runs_ == 0 ? seconds : std::min(least_[node], seconds);
    for (const auto& output : outputs) {
      if (output.defined() && output.has_storage()) {
        held_.push_back(output);
        held_bytes_ += static_cast<int64_t>(output.nbytes());
      }
    }
    while (held_bytes_ > kHeldBytes) {
      held_bytes_ -= static_cast<int64_t>(held_.front().nbytes());
      held_.pop_front();
    }
  }
  void slot_met(const SavedSlot&) override {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> slot_saved(const SavedSlot&) override {
    return nullptr;
  }

  void warm() {
    runs_ = 0;
  }
  void run_ends() {
    ++runs_;
  }
  const std::vector<double>& least() const {
    return least_;
  }

 private:
  void wait() const {
    if (!device_.is_cpu()) {
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    }
  }

  std::vector<double> least_;
  c10::Device device_;
  double (*now_)();
  double start_ = 0;
  int runs_ = 0;
  std::deque<at::Tensor> held_;
  int64_t held_bytes_ = 0;
};

/// Of all generators that the step may draw from.
std::vector<RngState> random_states(const Program& program, const c10::IValue& self, c10::Device device) {
  std::vector<RngState> states{RngState::of(c10::Device(c10::kCPU))};
  if (!device.is_cpu()) {
    states.push_back(RngState::of(device));
  }
  for (const auto& node : program.nodes) {
    if (const auto own = own_generator(node, self); own.defined()) {
      states.push_back(RngState::of(own));
    }
  }
  return states;
}

} // namespace

std::vector<double> measure_nodes(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const c10::IValue& module,
    const std::vector<c10::IValue>& inputs) {
  at::NoGradGuard no_grad;
  // What a step writes (running statistics, counters, inputs) it writes into these.
  const auto self = module.deepcopy();
  std::vector<at::Tensor> tensors;
  for (const auto& input : inputs) {
    collect_tensors(input.deepcopy(), tensors);
  }
  c10::Device device = c10::kCPU;
  for (const auto& tensor : tensors) {
    TORCH_CHECK(
        !tensor.defined() || !tensor.is_meta(),
        "recals: cost_model=\"profile\" runs the nodes on the example inputs, but these are on meta, without data");
    if (tensor.defined() && device.is_cpu()) {
      device = tensor.device();
    }
  }
  const auto program = Program::compile(graph);
  Stopwatch stopwatch(program->nodes.size(), device);
  const auto states = random_states(*program, self, device);
  auto once = [&] {
    std::deque<RngGuard> guards;
    for (const auto& state : states) {
      guards.emplace_back(state);
    }
    run(program, self, tensors, &stopwatch);
    stopwatch.run_ends();
  };
  once();
  stopwatch.warm();
  const auto start = Clock::now();
  for (int runs = 0; runs < kLeastRuns || (runs < kMostRuns && Clock::now() - start < kEnough); ++runs) {
    once();
  }
  return stopwatch.least();
}

void use_measured_seconds(DryRun& sizes, const std::vector<double>& seconds) {
  auto& step = sizes.step;
  TORCH_INTERNAL_ASSERT(seconds.size() == step.nodes.size(), "recals: other nodes were measured than are planned");
  double estimated = 0;
  double measured = 0;
  for (size_t n = 0; n < seconds.size(); ++n) {
    estimated += step.nodes[n].seconds;
    measured += seconds[n];
    step.nodes[n].seconds = seconds[n];
  }
  const double scale = estimated > 0 ? measured / estimated : 1;
  for (auto& moment : sizes.ledger.moments) {
    const bool is_node = moment.node >= 0 && (moment.phase == Phase::Forward || moment.phase == Phase::Replay);
    moment.seconds = is_node ? seconds[moment.node] : moment.seconds * scale;
  }
  step.backward_seconds *= scale;
  step.cost_model = {kProfile, ""};
}

} // namespace recals
