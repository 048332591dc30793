/// What CUDA's allocator takes for a storage, and steps planned for CUDA in C++.

#include <gtest/gtest.h>

#include "passes/sizes/cuda_allocator.h"
#include "test/unit/step.h"

namespace recals {
namespace {

constexpr int64_t MiB = 1024 * 1024;

TEST(CudaAllocator, RoundsUpToBlocks) {
  EXPECT_EQ(cuda_block_bytes(0), 0);
  EXPECT_EQ(cuda_block_bytes(1), 512);
  EXPECT_EQ(cuda_block_bytes(512), 512);
  EXPECT_EQ(cuda_block_bytes(513), 1024);
  EXPECT_EQ(cuda_block_bytes(MiB), MiB);
  EXPECT_EQ(cuda_block_bytes(MiB + 1), MiB + 512);
  EXPECT_EQ(cuda_block_bytes(9 * MiB + 1), 9 * MiB + 512); // split from a segment of 20 MiB
}

TEST(CudaAllocator, ALargeBlockKeepsARestThatIsNotWorthSplitting) {
  EXPECT_EQ(cuda_block_bytes(10 * MiB), 10 * MiB);
  EXPECT_EQ(cuda_block_bytes(10 * MiB + 1), 10 * MiB + 512); // of 12 MiB: a rest of almost 2 MiB is split off
  EXPECT_EQ(cuda_block_bytes(11 * MiB - 511), 12 * MiB); // rounded to 11 MiB, the rest is 1 MiB: not split off
  EXPECT_EQ(cuda_block_bytes(11 * MiB - 512), 11 * MiB - 512); // a rest of 1 MiB and 512 bytes is
  EXPECT_EQ(cuda_block_bytes(11 * MiB + 1), 12 * MiB);
  EXPECT_EQ(cuda_block_bytes(100 * MiB), 100 * MiB);
}

DeviceTable table(const std::vector<c10::Device>& devices) {
  DeviceTable table;
  for (const auto device : devices) {
    table.add(device);
  }
  return table;
}

TEST(Target, HasAnIndexAndAMargin) {
  const auto cpu = table({c10::kCPU});
  EXPECT_EQ(targets_of(cpu, "built-in", std::nullopt).at(0).name(), "cpu");
  EXPECT_EQ(targets_of(cpu, "built-in", std::nullopt).at(0).workspace_margin, 0);
  EXPECT_THROW(targets_of(cpu, "built-in", 5), c10::Error);
  EXPECT_THROW(targets_of(table({c10::kCUDA}), "built-in", -1), c10::ValueError);
  const auto both = targets_of(table({c10::kCPU, c10::kCUDA, c10::Device(c10::kCUDA, 1)}), "built-in", 5);
  ASSERT_EQ(both.size(), 3);
  EXPECT_EQ(both[0].workspace_margin, 0);
  EXPECT_EQ(both[1].name(), "cuda:0");
  EXPECT_EQ(both[1].workspace_margin, 5);
  EXPECT_EQ(both[1].cost_model.device, "cuda");
  EXPECT_EQ(both[2].name(), "cuda:1");
}

TEST(Target, AStepPlannedForCudaCountsBlocks) {
  torch::jit::Module module("net");
  module.register_parameter("w", at::ones({10}).set_requires_grad(true), false);
  module.define("def forward(self, x):\n  return torch.sum(torch.tanh(x * self.w))\n");
  StepOptions options;
  options.target.device = c10::Device(c10::kCUDA);
  options.target.workspace_margin = 0;
  const auto analysis = analyse(module, "forward", {at::ones({3, 10})}, options);
  EXPECT_EQ(analysis.sizes.step.devices, std::vector<std::string>{"cuda:0"});
  EXPECT_EQ(analysis.flat.signature, "(f32[3, 10]@cuda:0)");
  EXPECT_EQ(analysis.sizes.held[0], 2 * 512); // tanh's result and the loss
  EXPECT_EQ(analyse(module, "forward", {at::ones({3, 10})}).sizes.held[0], 30 * 4 + 4);
}

} // namespace
} // namespace recals
