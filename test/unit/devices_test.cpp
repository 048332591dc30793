/// Steps on several devices, which need not be there: what runs on meta stands for them.

#include <gtest/gtest.h>

#include "test/unit/step.h"

namespace recals {
namespace {

const c10::Device kFirst(c10::kCUDA, 0);
const c10::Device kSecond(c10::kCUDA, 1);

TEST(DeviceTable, NumbersDevicesInTheOrderInWhichTheyCome) {
  DeviceTable table;
  EXPECT_EQ(table.stand_in(kSecond), c10::Device(c10::kMeta));
  EXPECT_EQ(table.stand_in(c10::kCPU), c10::Device(c10::kMeta, 1));
  EXPECT_EQ(table.add(c10::Device(c10::kCPU, 0)), 1) << "the CPU is one device, whatever its index";
  EXPECT_EQ(table.stand_in(c10::Device(c10::kMeta, 1)), c10::Device(c10::kMeta, 1));
  EXPECT_EQ(table.real(c10::Device(c10::kMeta)), kSecond);
  EXPECT_EQ(table.real(c10::Device(c10::kMeta, 1)), c10::Device(c10::kCPU));
  EXPECT_EQ(table.real(kFirst), kFirst);
  EXPECT_EQ(table.number_of(kFirst), -1);
  const DeviceTable& constant = table;
  EXPECT_THROW(constant.stand_in(kFirst), c10::Error);
}

/// 100 x 64 floats are 25600 bytes.
constexpr int64_t kActivation = 100 * 64 * 4;

torch::jit::Module pipeline() {
  return testing::module_of(
      {{"w", {64, 64}}},
      "def forward(self, x):\n"
      "  h = torch.tanh(torch.matmul(x, self.w))\n"
      "  h = h.to(torch.device('cuda:1'))\n"
      "  h = torch.tanh(torch.tanh(torch.tanh(h)))\n"
      "  h = torch.sigmoid(h.to('cuda:0')) * torch.tensor(0.5)\n"
      "  return torch.sum(h.cpu())\n");
}

StepOptions limits(const std::map<std::string, int64_t>& bytes) {
  StepOptions options;
  for (const auto& [name, limit] : bytes) {
    options.limits[name].bytes = limit;
  }
  return options;
}

int64_t at(const std::vector<std::string>& devices, const std::vector<int64_t>& bytes, const std::string& name) {
  return bytes.at(std::find(devices.begin(), devices.end(), name) - devices.begin());
}

TEST(Devices, EveryByteIsOnItsOwn) {
  const auto analysis = analyse(pipeline(), "forward", {at::ones({100, 64})});
  const auto& step = analysis.sizes.step;
  EXPECT_EQ(step.devices, (std::vector<std::string>{"cpu", "cuda:1", "cuda:0"}));
  // cpu: tanh's result, which its backward reads, and the sum. cuda:1: three results of tanh. cuda:0: sigmoid's.
  EXPECT_EQ(at(step.devices, analysis.sizes.held, "cpu"), kActivation + 4);
  EXPECT_EQ(at(step.devices, analysis.sizes.held, "cuda:1"), 3 * kActivation);
  EXPECT_EQ(at(step.devices, analysis.sizes.held, "cuda:0"), kActivation);
  // While the last tanh runs its input, copied from the CPU, is gone; a gradient comes and goes with each backward.
  EXPECT_EQ(at(step.devices, analysis.sizes.peak, "cuda:1"), 5 * kActivation);
  for (const auto& storage : step.storages) {
    EXPECT_EQ(
        step.devices[storage.device] == "cuda:1",
        storage.bytes == kActivation && storage.producer >= 2 && storage.producer <= 5)
        << storage.name << " of node " << storage.producer;
  }
  const auto report = report_of(analysis);
  ASSERT_EQ(report.devices.size(), 3u);
  for (size_t d = 0; d < 3; ++d) {
    EXPECT_EQ(report.devices[d].name, step.devices[d]);
    EXPECT_EQ(report.devices[d].peak, analysis.sizes.peak[d]);
    EXPECT_EQ(report.devices[d].held, analysis.sizes.held[d]);
    int64_t shared = 0;
    for (const auto& share : report.devices[d].modules) {
      shared += share.peak;
    }
    EXPECT_EQ(shared, report.devices[d].peak);
  }
}

TEST(Devices, EachHasItsOwnBudget) {
  const auto analysis = analyse(pipeline(), "forward", {at::ones({100, 64})});
  const auto& devices = analysis.sizes.step.devices;
  const auto planned = plan_step(analysis, limits({{"cuda:1", 4 * kActivation}}));
  EXPECT_EQ(at(devices, planned.peak, "cuda:1"), 4 * kActivation);
  EXPECT_EQ(at(devices, planned.peak, "cuda:0"), at(devices, analysis.sizes.peak, "cuda:0"));
  EXPECT_EQ(at(devices, planned.budgets, "cpu"), plan::kNoBudget);
  EXPECT_EQ(planned.peak, planned.simulated_peak);
  for (size_t s = 0; s < planned.plan.choices.size(); ++s) {
    const auto& storage = analysis.sizes.step.storages[s];
    EXPECT_TRUE(planned.plan.choices[s].fate == plan::Fate::Keep || devices[storage.device] == "cuda:1")
        << storage.name;
  }
}

TEST(Devices, ABudgetWithoutANameIsOneOfEachAccelerator) {
  const std::vector<std::string> devices{"cpu", "cuda:0", "cuda:1"};
  const torch::jit::Module module("net");
  const std::vector<int64_t> peaks{10, 20, 30};
  StepOptions options;
  const plan::Limit half{plan::Limit::Kind::Share, 0, 0.5};
  options.limits = {{"", half}};
  EXPECT_EQ(budgets_of(options, devices, peaks, module), (std::vector<int64_t>{plan::kNoBudget, 10, 15}));
  EXPECT_EQ(budgets_of(options, {"cpu"}, {10}, module), std::vector<int64_t>{5});
  options.limits["cpu"] = half;
  EXPECT_EQ(budgets_of(options, devices, peaks, module), (std::vector<int64_t>{5, 10, 15}));
  options.limits["cuda:2"] = half;
  EXPECT_THROW(budgets_of(options, devices, peaks, module), BadBudget);
}

TEST(Devices, MinIsTheSmallestBudgetOfThatDevice) {
  const auto analysis = analyse(pipeline(), "forward", {at::ones({100, 64})});
  StepOptions options;
  options.limits["cuda:1"].kind = plan::Limit::Kind::Min;
  const auto least = plan_step(analysis, options);
  const auto& devices = analysis.sizes.step.devices;
  const auto bytes = at(devices, least.peak, "cuda:1");
  EXPECT_EQ(at(devices, least.budgets, "cuda:1"), bytes);
  EXPECT_EQ(at(devices, least.budgets, "cuda:0"), plan::kNoBudget);
  EXPECT_LT(bytes, at(devices, analysis.sizes.peak, "cuda:1"));
  EXPECT_EQ(plan_step(analysis, limits({{"cuda:1", bytes}})).plan.choices, least.plan.choices);
  EXPECT_THROW(plan_step(analysis, limits({{"cuda:1", bytes - 1}})), BudgetUnreachable);
}

TEST(Devices, TheErrorSaysWhatWouldWorkOnEach) {
  const auto analysis = analyse(pipeline(), "forward", {at::ones({100, 64})});
  try {
    plan_step(analysis, limits({{"cuda:0", 10 * kActivation}, {"cuda:1", 100}}));
    FAIL() << "100 bytes are enough";
  } catch (const BudgetUnreachable& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("no plan fits into 100 B (100 bytes) on cuda:1"), std::string::npos) << text;
    ASSERT_EQ(error.smallest.size(), 2u);
    const auto works = plan_step(analysis, limits(error.smallest));
    EXPECT_EQ(at(analysis.sizes.step.devices, works.peak, "cuda:1"), error.smallest.at("cuda:1"));
  }
}

} // namespace
} // namespace recals
