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

TEST(Target, HasAnIndexAndAMargin) {
  TargetOptions options;
  EXPECT_EQ(target_of(c10::kCPU, options).name(), "cpu");
  EXPECT_EQ(target_of(c10::kCPU, options).workspace_margin, 0);
  options.device = c10::Device(c10::kCUDA);
  options.workspace_margin = 5;
  EXPECT_EQ(target_of(c10::kCPU, options).name(), "cuda:0");
  EXPECT_EQ(target_of(c10::kCPU, options).workspace_margin, 5);
  options.device.reset();
  EXPECT_THROW(target_of(c10::kCPU, options), c10::Error);
  EXPECT_EQ(target_of(c10::Device(c10::kCUDA, 1), options).name(), "cuda:1");
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
  EXPECT_EQ(analysis.sizes.held, 2 * 512); // tanh's result and the loss
  EXPECT_EQ(analyse(module, "forward", {at::ones({3, 10})}).sizes.held, 30 * 4 + 4);
}

} // namespace
} // namespace recals
