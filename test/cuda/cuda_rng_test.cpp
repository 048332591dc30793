#include "runtime/cuda/cuda_rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "runtime/rng_state.h"

namespace recals {
namespace {

TEST(CudaRng, IsRegisteredWhenItsLibraryIsLoaded) {
  EXPECT_NE(dynamic_cast<const CudaRng*>(&rng_backend(c10::kCUDA)), nullptr);
  EXPECT_EQ(dynamic_cast<const CudaRng*>(&rng_backend(c10::kCPU)), nullptr);
  EXPECT_EQ(RngState::bytes(c10::Device(c10::kCUDA, 0)), 0) << "no tensor, and no device is asked";
}

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::cuda::device_count() == 0) {
      GTEST_SKIP() << "needs a GPU";
    }
  }
};

at::Generator philox(uint64_t seed, uint64_t offset) {
  return at::make_generator<at::CUDAGeneratorImpl>(
      static_cast<c10::DeviceIndex>(0), c10::make_intrusive<at::CUDAGeneratorState>(seed, offset));
}

at::CUDAGeneratorImpl* impl(const at::Generator& generator) {
  return generator.get<at::CUDAGeneratorImpl>();
}

TEST_F(OnGpu, AStateIsSeedAndOffset) {
  const CudaRng rng;
  auto generator = philox(7, 12);
  const auto state = rng.save(generator);
  EXPECT_FALSE(state.bytes.defined());
  impl(generator)->set_philox_offset_per_thread(40);
  EXPECT_NE(rng.fingerprint(generator), rng.fingerprint(philox(7, 12)));
  rng.restore(generator, state);
  EXPECT_EQ(impl(generator)->current_seed(), 7);
  EXPECT_EQ(impl(generator)->philox_offset_per_thread(), 12);
  EXPECT_EQ(rng.fingerprint(generator), rng.fingerprint(philox(7, 12)));
}

/// Torch resets cuDNN's dropout after a new seed. A replay, which sets the forward's seed and then the outer one again, is
/// none.
TEST_F(OnGpu, AReplayLeavesTheDropoutOfRecurrentLayersAlone) {
  const CudaRng rng;
  for (const bool begins_anew : {false, true}) {
    auto generator = philox(7, 12);
    const auto forward = rng.save(generator);
    auto other = philox(8, 0);
    const auto outer = rng.save(other);
    if (!begins_anew) {
      impl(generator)->reset_rnn_state(); // a recurrent layer has seen the seed
    }
    rng.restore(generator, outer);
    rng.restore(generator, forward);
    EXPECT_EQ(impl(generator)->current_seed(), 7);
    EXPECT_EQ(impl(generator)->philox_offset_per_thread(), 12);
    EXPECT_EQ(impl(generator)->reset_rnn_state(), begins_anew);
  }
}

TEST_F(OnGpu, AGuardDrawsAgainAndPutsTheOuterStateBack) {
  const auto options = at::TensorOptions().device(at::kCUDA, 0);
  at::manual_seed(5);
  const auto state = RngState::of(c10::Device(c10::kCUDA, 0));
  const auto first = at::rand({1000}, options);
  const auto expected = at::rand({1000}, options);
  at::manual_seed(5);
  at::rand({1000}, options);
  {
    RngGuard guard(state);
    EXPECT_TRUE(at::equal(at::rand({1000}, options), first));
  }
  EXPECT_TRUE(at::equal(at::rand({1000}, options), expected));
}

TEST_F(OnGpu, SavingAndRestoringAllocatesNothing) {
  const auto device = c10::Device(c10::kCUDA, 0);
  at::empty({1}, at::TensorOptions().device(device));
  const auto allocations = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocation[0].allocated; };
  const auto before = allocations();
  const auto state = RngState::of(device);
  { RngGuard guard(state); }
  EXPECT_EQ(allocations(), before);
}

TEST_F(OnGpu, InACaptureItIsRefused) {
  const auto side = c10::cuda::getStreamFromPool();
  const c10::StreamGuard guard(side);
  at::cuda::CUDAGraph graph;
  auto x = at::ones({8}, at::TensorOptions().device(at::kCUDA, 0));
  graph.capture_begin();
  std::string error;
  try {
    RngState::of(c10::Device(c10::kCUDA, 0));
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }
  x = x + 1;
  graph.capture_end();
  EXPECT_THAT(error, testing::HasSubstr("captured into a CUDA graph"));
  EXPECT_THAT(error, testing::HasSubstr("preserve_rng_state=False"));
}

} // namespace
} // namespace recals
