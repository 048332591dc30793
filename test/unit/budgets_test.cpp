#include "passes/budgets.h"

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

namespace recals {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// A root with a /proc and a /sys of its own.
class Machine {
 public:
  Machine() : root_(std::filesystem::path(testing::TempDir()) / "recals_budgets_test") {
    std::filesystem::remove_all(root_);
    put("/proc/meminfo", "MemTotal: 33554432 kB\nMemFree: 1024 kB\nMemAvailable: 16777216 kB\n");
  }
  ~Machine() {
    std::filesystem::remove_all(root_);
  }
  void put(const std::string& path, const std::string& text) const {
    const auto file = root_.string() + path;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file) << text;
  }
  int64_t free() const {
    return free_host_bytes(root_.string());
  }

 private:
  std::filesystem::path root_;
};

TEST(FreeHostBytes, IsWhatTheSystemHasAvailable) {
  EXPECT_EQ(Machine().free(), 16 * kGiB);
}

TEST(FreeHostBytes, IsWhatTheTightestControlGroupAllows) {
  Machine machine;
  machine.put("/proc/self/cgroup", "0::/pod/job\n");
  machine.put("/sys/fs/cgroup/pod/job/memory.max", "max\n");
  machine.put("/sys/fs/cgroup/pod/job/memory.current", "1073741824\n");
  EXPECT_EQ(machine.free(), 16 * kGiB);
  // 8 GiB, of which 3 are in use, one of these for pages of files that can go.
  machine.put("/sys/fs/cgroup/pod/memory.max", "8589934592\n");
  machine.put("/sys/fs/cgroup/pod/memory.current", "3221225472\n");
  machine.put("/sys/fs/cgroup/pod/memory.stat", "anon 2147483648\ninactive_file 1073741824\n");
  EXPECT_EQ(machine.free(), 6 * kGiB);
  machine.put("/sys/fs/cgroup/pod/job/memory.max", "2147483648\n");
  EXPECT_EQ(machine.free(), kGiB);
  machine.put("/sys/fs/cgroup/pod/job/memory.current", "3221225472\n");
  EXPECT_EQ(machine.free(), 0);
}

TEST(FreeHostBytes, ReadsGroupsOfVersionOneToo) {
  Machine machine;
  machine.put("/proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/a\n0::/\n");
  machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5368709120\n");
  EXPECT_EQ(machine.free(), 16 * kGiB);
  machine.put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296\n");
  machine.put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2147483648\n");
  machine.put("/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 5\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(machine.free(), 3 * kGiB);
}

torch::jit::Module module_with_parameters(c10::Device device = c10::kCPU) {
  torch::jit::Module module("net");
  module.register_parameter("w", at::ones({100}, device).set_requires_grad(true), false);
  module.register_parameter("frozen", at::ones({1000}, device), false);
  module.register_parameter(
      "half", at::ones({10}, at::TensorOptions(device).dtype(at::kHalf)).set_requires_grad(true), false);
  module.register_buffer("statistics", at::ones({7}, device));
  torch::jit::Module inner("inner");
  inner.register_parameter("tied", module.attr("w").toTensor(), false);
  module.register_module("inner", inner);
  return module;
}

TEST(Room, LeavesWhatTrainingNeedsBesides) {
  const auto module = module_with_parameters();
  const auto room = room_on(module, c10::kCPU, false);
  EXPECT_GT(room.free, 0);
  EXPECT_EQ(room.slack, room.free / 20);
  EXPECT_EQ(room.moved, 0);
  EXPECT_EQ(room.gradients, 100 * 4 + 10 * 2);
  EXPECT_EQ(room.optimizer, 2 * (100 * 4 + 10 * 2));
  EXPECT_EQ(room.budget(), room.free - room.slack - 3 * 420);

  module.attr("w").toTensor().mutable_grad() = at::zeros({100});
  EXPECT_EQ(room_on(module, c10::kCPU, false).gradients, 10 * 2);
}

TEST(Room, CountsWhatIsStillToBeMoved) {
  const auto module = module_with_parameters(c10::kMeta);
  EXPECT_EQ(room_on(module, c10::kCPU, true).moved, 100 * 4 + 1000 * 4 + 10 * 2 + 7 * 4);
  EXPECT_EQ(room_on(module, c10::kCPU, true).gradients, 420);
  const auto elsewhere = room_on(module, c10::kCPU, false);
  EXPECT_EQ(elsewhere.moved + elsewhere.gradients + elsewhere.optimizer, 0);
}

TEST(Room, OfADeviceThatIsNotThereIsAnError) {
  try {
    room_on(module_with_parameters(), c10::Device(c10::kCUDA, 99), false);
    FAIL() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("there is no cuda:99 here"));
  }
}

TEST(BudgetsOf, AreNumbersOrASearch) {
  const auto module = module_with_parameters();
  const auto bytes = [&](const char* text) {
    StepOptions options;
    options.limits[""] = std::get<plan::Limit>(plan::parse_limit(text));
    return budgets_of(options, {"cpu"}, {1000}, module).at(0);
  };
  EXPECT_EQ(bytes("77"), 77);
  EXPECT_EQ(bytes("50%"), 500);
  EXPECT_EQ(bytes("min"), kSmallest);
  EXPECT_GT(bytes("auto"), 1 << 20);
}

} // namespace
} // namespace recals
