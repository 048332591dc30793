/// Reports: every byte of a dry run is in them once.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "passes/report/report.h"
#include "passes/sizes/ledger.h"
#include "test/unit/step.h"

namespace recals {
namespace {

using testing::module_of;

Analysis small_step() {
  const auto module = module_of(
      {{"w", {32, 16}}, {"v", {8, 32}}},
      R"(
    def forward(self, x):
        h = torch.relu(torch.linear(x, self.w))
        h = torch.dropout(torch.gelu(h), 0.5, True)
        return torch.linear(h, self.v)
  )");
  return analyse(module, "forward", {at::randn({64, 16})});
}

int64_t sum(const std::vector<Share>& shares, int64_t Share::*when) {
  int64_t bytes = 0;
  for (const auto& share : shares) {
    bytes += share.*when;
  }
  return bytes;
}

void expect_sums(const DeviceReport& device) {
  for (const auto* shares : {&device.uses, &device.modules, &device.ops, &device.dtypes}) {
    EXPECT_EQ(sum(*shares, &Share::held), device.held);
    EXPECT_EQ(sum(*shares, &Share::peak), device.peak);
  }
  int64_t highest = 0;
  for (const auto& point : device.curve) {
    highest = std::max(highest, point.most);
    EXPECT_LE(point.live, point.most);
  }
  EXPECT_EQ(highest, device.peak);
  EXPECT_EQ(device.curve.at(device.peak_point).most, device.peak);
}

TEST(Ledger, ByHand) {
  LedgerWriter writer;
  writer.begin(Phase::Forward, 0, -1);
  writer.allocated(7, 0, 100);
  writer.is_dtype(7, c10::kFloat);
  writer.is_dtype(7, c10::kLong); // a view: the first one counts
  writer.grown(7, 20);
  writer.scratch(0, 5);
  writer.add_seconds(0.5);
  writer.begin(Phase::Forward, 1, -1);
  writer.allocated(8, 0, 1);
  writer.freed(7);
  writer.freed(7); // unknown by now
  writer.allocated(7, 0, 3); // another allocation
  writer.forward_ends();
  const auto ledger = writer.finish();
  ASSERT_EQ(ledger.allocations.size(), 3u);
  EXPECT_EQ(ledger.allocations[0].bytes, 120);
  EXPECT_EQ(ledger.allocations[0].dtype, c10::kFloat);
  EXPECT_EQ(ledger.allocations[1].dtype, c10::ScalarType::Undefined);
  std::vector<int64_t> changes;
  for (const auto& event : ledger.events) {
    changes.push_back(event.bytes);
  }
  EXPECT_EQ(changes, (std::vector<int64_t>{100, 20, 5, 1, -120, 3}));
  EXPECT_EQ(ledger.events[2].allocation, -1);
  EXPECT_EQ(ledger.forward_events, 6u);
  ASSERT_EQ(ledger.moments.size(), 3u);
  EXPECT_EQ(ledger.moments[0].seconds, 0.5);
  EXPECT_EQ(ledger.moments[2].phase, Phase::Loss);
}

TEST(Report, AddsUpToTheDryRun) {
  const auto analysis = small_step();
  const auto report = make_report(analysis.sizes);
  ASSERT_EQ(report.devices.size(), 1u);
  const auto& device = report.devices[0];
  EXPECT_EQ(device.peak, analysis.sizes.peak[0]);
  EXPECT_EQ(device.held, analysis.sizes.held[0]);
  EXPECT_EQ(device.curve.back().live, 0);
  expect_sums(device);
  double forward = 0;
  for (const auto& node : analysis.sizes.step.nodes) {
    forward += node.seconds;
  }
  EXPECT_DOUBLE_EQ(report.forward_seconds, forward);
  EXPECT_DOUBLE_EQ(report.backward_seconds, analysis.sizes.step.backward_seconds);
  EXPECT_EQ(report.recompute_seconds, 0);
}

TEST(Report, UsesByHand) {
  // 64 rows of 32 floats, 8192 bytes: the results of relu and linear die in the forward or are saved.
  const auto report = make_report(small_step().sizes);
  const auto& uses = report.devices[0].uses;
  // relu's result (twice: relu's own slot and gelu's input), dropout's mask and its result.
  EXPECT_EQ(uses[static_cast<int>(Use::Saved)].held, 3 * 64 * 32 * 4);
  EXPECT_EQ(uses[static_cast<int>(Use::Output)].held, 64 * 8 * 4);
  EXPECT_EQ(uses[static_cast<int>(Use::Temporary)].held, 0);
  EXPECT_EQ(uses[static_cast<int>(Use::Recomputed)].peak, 0);
}

TEST(Report, OfAPlanAddsUpAndNamesReplays) {
  const auto analysis = small_step();
  const auto plan = testing::plan_that_drops(analysis, testing::everything);
  const auto program = testing::program_under(analysis, plan, /*meta=*/true);
  const auto sizes = dry_run(program, analysis.twin.value, analysis.inputs, analysis.targets);
  const auto report = make_report(sizes);
  const auto& device = report.devices[0];
  EXPECT_EQ(device.peak, sizes.peak[0]);
  EXPECT_EQ(device.held, sizes.held[0]);
  EXPECT_LT(device.held, analysis.sizes.held[0]);
  EXPECT_EQ(device.curve.back().live, 0);
  expect_sums(device);
  std::vector<std::string> replayed;
  for (const auto& point : device.curve) {
    if (point.place.phase == Phase::Replay) {
      replayed.push_back(point.place.op);
    }
  }
  EXPECT_EQ(replayed.size(), plan.predicted.replayed.size());
  for (size_t i = 0; i < std::min(replayed.size(), plan.predicted.replayed.size()); ++i) {
    EXPECT_EQ(std::count(replayed.begin(), replayed.end(), sizes.step.nodes[plan.predicted.replayed[i]].op) > 0, true);
  }
  EXPECT_GT(report.recompute_seconds, 0);
}

TEST(Report, BackwardIsNamedByTheForward) {
  const auto report = make_report(small_step().sizes);
  std::map<std::string, std::string> forward_of;
  for (const auto& point : report.devices[0].curve) {
    if (point.place.phase == Phase::Backward) {
      forward_of[point.place.op] = point.place.forward_op;
    }
  }
  EXPECT_EQ(forward_of.at("ReluBackward0"), "aten::relu");
  EXPECT_EQ(forward_of.at("GeluBackward0"), "aten::gelu");
  EXPECT_EQ(forward_of.at("MseLossBackward0"), ""); // the stand-in for the loss
}

TEST(Report, CountsWhatEagerPythonAdds) {
  const auto analysis = small_step();
  std::vector<int64_t> eager(analysis.sizes.step.nodes.size(), 0);
  eager.at(1) = 8;
  eager.at(2) = 16;
  const auto report = make_report(analysis.sizes, eager);
  EXPECT_EQ(report.devices[0].peak, analysis.sizes.peak[0] + 24);
  EXPECT_EQ(report.devices[0].held, analysis.sizes.held[0] + 24);
  expect_sums(report.devices[0]);
}

TEST(Report, JsonHoldsTheSameNumbers) {
  const auto report = make_report(small_step().sizes);
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["format"], 1);
  const auto& device = json["devices"][0];
  EXPECT_EQ(device["peak"], report.devices[0].peak);
  EXPECT_TRUE(device["budget"].is_null());
  EXPECT_TRUE(device["plain_peak"].is_null());
  ASSERT_EQ(device["curve"].size(), report.devices[0].curve.size());
  int64_t bytes = 0;
  for (const auto& share : device["by_dtype"]) {
    bytes += share["peak"].get<int64_t>();
  }
  EXPECT_EQ(bytes, report.devices[0].peak);
  EXPECT_EQ(json["storages"].size(), report.storages.size());
  EXPECT_EQ(json["storages"][0]["bytes"], report.storages[0].bytes);
}

TEST(Report, TextHoldsExactBytesAndSumsUpWhatItLeavesOut) {
  auto report = make_report(small_step().sizes);
  auto& device = report.devices[0];
  const auto text = to_text(report, 1);
  EXPECT_NE(text.find("(" + std::to_string(device.peak) + " bytes)"), std::string::npos);
  EXPECT_NE(text.find("(" + std::to_string(device.held) + " bytes)"), std::string::npos);
  ASSERT_GT(device.ops.size(), 1u);
  EXPECT_NE(text.find("(" + std::to_string(device.ops.size() - 1) + " more)"), std::string::npos);
  EXPECT_EQ(text.find("budget"), std::string::npos);
  device.budget = 123456;
  EXPECT_NE(to_text(report).find("budget 120.6 KiB (123456 bytes)"), std::string::npos);
}

} // namespace
} // namespace recals
