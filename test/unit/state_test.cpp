/// Generator and autocast state, and the memory tracker.

#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include "runtime/autocast_state.h"
#include "runtime/backend_state.h"
#include "runtime/checksum.h"
#include "runtime/memory_tracker.h"
#include "runtime/rng_state.h"

namespace recals {
namespace {

TEST(RngState, AGuardDrawsAgainAndPutsTheOuterStateBack) {
  at::manual_seed(5);
  const auto state = RngState::of(c10::Device(c10::kCPU));
  const auto first = at::rand({8});
  const auto second_state = RngState::of(c10::Device(c10::kCPU));
  {
    RngGuard guard(state);
    EXPECT_TRUE(at::equal(at::rand({8}), first));
  }
  const auto second = at::rand({8});
  second_state.restore();
  EXPECT_TRUE(at::equal(at::rand({8}), second));
}

TEST(RngState, AnExceptionPutsTheOuterStateBackToo) {
  at::manual_seed(5);
  const auto state = RngState::of(c10::Device(c10::kCPU));
  at::rand({3});
  const auto outer = RngState::of(c10::Device(c10::kCPU));
  const auto expected = at::rand({8});
  outer.restore();
  try {
    RngGuard guard(state);
    at::rand({100});
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(at::equal(at::rand({8}), expected));
}

TEST(RngState, AReplayThatDrawsMoreIsNoticed) {
  auto generator = at::detail::createCPUGenerator(5);
  auto state = RngState::of(generator);
  at::rand({8}, generator);
  state.ends_at(RngState::place_of(generator));
  {
    RngGuard guard(state);
    at::rand({8}, generator);
    EXPECT_TRUE(state.has_ended_alike());
  }
  {
    RngGuard guard(state);
    at::rand({8}, generator);
    at::rand({1}, generator); // what another thread would do
    EXPECT_FALSE(state.has_ended_alike());
  }
  EXPECT_TRUE(state.has_ended_alike()) << "the outer state is the one after the draw";
}

TEST(RngState, ANormalNumberThatWaitsBelongsToThePlace) {
  auto generator = at::detail::createCPUGenerator(5);
  at::normal(0., 1., {3}, generator);
  auto twin = RngState::copy_of(generator);
  EXPECT_EQ(RngState::place_of(generator), RngState::place_of(twin));
  twin.get<at::CPUGeneratorImpl>()->set_next_double_normal_sample(0.25);
  EXPECT_NE(RngState::place_of(generator), RngState::place_of(twin));
}

TEST(RngState, OfAnExplicitGeneratorAndOfACopy) {
  auto generator = at::detail::createCPUGenerator(7);
  const auto copy = RngState::copy_of(generator);
  const auto first = at::rand({8}, generator);
  const auto after = RngState::place_of(generator);
  const auto state = RngState::of(generator, copy);
  {
    RngGuard guard(state);
    EXPECT_TRUE(at::equal(at::rand({8}, generator), first));
  }
  EXPECT_EQ(RngState::place_of(generator), after);
}

TEST(RngState, OnMetaAStandInOfTheSameSizeIsKept) {
  EXPECT_EQ(
      RngState::bytes(c10::kCPU),
      static_cast<int64_t>(at::globalContext().defaultGenerator(c10::kCPU).get_state().storage().nbytes()));
  DeviceTable devices;
  devices.add(c10::kCPU);
  const auto stand_in = RngState::stand_in(c10::Device(c10::kMeta), devices);
  stand_in.restore(); // nothing to restore, nothing thrown
  const RngGuard guard(stand_in);
  EXPECT_TRUE(stand_in.has_ended_alike());
}

TEST(RngBackend, ADeviceWithItsOwnWayIsAsked) {
  struct Busy : RngBackend {
    std::string obstacle() const override {
      return "it is busy";
    }
  };
  static const Busy busy;
  const auto& usual = rng_backend(c10::kCPU);
  register_rng_backend(c10::kCPU, busy);
  try {
    RngState::of(c10::Device(c10::kCPU));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("it is busy"));
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("preserve_rng_state=False"));
  }
  register_rng_backend(c10::kCPU, usual);
}

TEST(DrawLock, KeepsOtherThreadsAwayAndNotItsOwn) {
  auto generator = at::detail::createCPUGenerator(5);
  const auto state = RngState::of(generator);
  const auto expected = at::rand({1000}, generator);
  std::atomic<bool> wrong{false};
  // Two threads that draw the same again and again: without the lock each would disturb the other.
  auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      const DrawLock outer(generator);
      const RngGuard guard(state);
      wrong = wrong || !at::equal(at::rand({1000}, generator), expected);
    }
  };
  std::thread one(work);
  std::thread two(work);
  one.join();
  two.join();
  EXPECT_FALSE(wrong);
}

TEST(RngState, AGuardPutsTheOuterStateBackOnceAndWhenItIsAsked) {
  at::manual_seed(1);
  const auto state = RngState::of(at::kCPU);
  at::rand({3});
  const auto outer = at::globalContext().defaultGenerator(at::kCPU).get_state();
  {
    RngGuard guard(state);
    at::rand({5});
    guard.put_back();
    EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), outer));
    at::rand({2});
  }
  EXPECT_FALSE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), outer));
}

TEST(AutocastState, HasEveryDeviceTypeThatTorchCastsOn) {
  at::autocast::set_autocast_enabled(at::kXPU, true);
  at::autocast::set_autocast_dtype(at::kXPU, at::kBFloat16);
  const auto inside = AutocastState::current();
  at::autocast::set_autocast_enabled(at::kXPU, false);
  at::autocast::set_autocast_dtype(at::kXPU, at::kHalf);
  {
    AutocastGuard guard(inside);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kXPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kXPU), at::kBFloat16);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kXPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kXPU), at::kHalf);
  EXPECT_EQ(inside.text({at::kXPU}), " under autocast(xpu: bf16)");
}

/// Every switch set to something else, then put back.
TEST(BackendState, AGuardSetsItAndPutsTheOuterStateBack) {
  auto& context = at::globalContext();
  const auto usual = BackendState::current();
  context.setUserEnabledMkldnn(false);
  context.setSDPUseFlash(false);
  context.setSDPPriorityOrder({0, 1, 2, 3, 4});
  context.setDeterministicAlgorithms(true, true);
  context.setBenchmarkCuDNN(true);
  context.setAllowBF16ReductionCuBLAS(false, false);
  context.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, at::Float32Precision::BF16);
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 1);
  const auto other = BackendState::current();
  EXPECT_FALSE(other == usual);
  EXPECT_FALSE(other.checksum() == usual.checksum());
  usual.set();
  EXPECT_TRUE(BackendState::current() == usual);
  EXPECT_TRUE(BackendState::current().checksum() == usual.checksum());
  EXPECT_TRUE(context.userEnabledMkldnn());
  EXPECT_EQ(at::get_num_threads(), threads);
  {
    BackendGuard guard(other);
    EXPECT_TRUE(BackendState::current() == other);
    EXPECT_FALSE(context.userEnabledMkldnn());
    EXPECT_EQ(context.sDPPriorityOrder()[0], at::SDPBackend::math);
    EXPECT_TRUE(context.deterministicAlgorithmsWarnOnly());
    EXPECT_EQ(context.allowBF16ReductionCuBLAS(), at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
    EXPECT_EQ(context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL), at::Float32Precision::BF16);
    EXPECT_EQ(c10::get_default_dtype_as_scalartype(), at::kDouble);
    EXPECT_EQ(at::get_num_threads(), threads + 1);
  }
  EXPECT_TRUE(BackendState::current() == usual);
}

TEST(BackendState, ItsTextNamesWhatChoosesKernelsAndIsReadBack) {
  auto& context = at::globalContext();
  const auto usual = BackendState::current();
  EXPECT_EQ(usual.text({at::kCPU, at::kCUDA}), "");
  context.setUserEnabledMkldnn(false);
  context.setUserEnabledCuDNN(false);
  context.setSDPUseFlash(false);
  context.setSDPUseCuDNN(false);
  context.setDeterministicAlgorithms(true, false);
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  at::set_num_threads(at::get_num_threads() + 1);
  const auto other = BackendState::current();
  usual.set();
  const std::string cpu = " with oneDNN off, attention: math, deterministic algorithms, default dtype f64";
  EXPECT_EQ(other.text({at::kCPU}), cpu);
  const std::string both =
      " with oneDNN off, cuDNN off, attention: efficient+math+overrideable, deterministic algorithms, default dtype "
      "f64";
  EXPECT_EQ(other.text({at::kCPU, at::kCUDA}), both);
  for (const std::string inputs : {"(f32[2]@cpu)", "(f32[2]@cpu) under autocast(cpu: bf16)", "(\"a) with b\")"}) {
    const auto [rest, state] = BackendState::parse(inputs + both);
    EXPECT_EQ(rest, inputs);
    ASSERT_TRUE(state);
    EXPECT_EQ(state->text({at::kCPU, at::kCUDA}), both);
    const auto [same, none] = BackendState::parse(inputs);
    EXPECT_EQ(same, inputs);
    EXPECT_FALSE(none);
  }
  EXPECT_THROW(BackendState::parse("(f32[2]@cpu) with something new"), c10::Error);
}

TEST(Checksum, DependsOnEachByteAndOnItsPlace) {
  std::vector<char> bytes(75, 0);
  std::vector<Checksum> seen{checksum_of(bytes.data(), bytes.size()), checksum_of(bytes.data(), bytes.size() - 1)};
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const char value : {1, -1}) {
      bytes[i] = value;
      seen.push_back(checksum_of(bytes.data(), bytes.size()));
      bytes[i] = 0;
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(seen[i] == seen[j]) << i << " and " << j;
    }
  }
  EXPECT_TRUE(checksum_of(bytes.data(), bytes.size()) == seen.front());
}

TEST(Checksum, IsOfSmallStoragesOfTheCpu) {
  EXPECT_TRUE(checksum_if_small(at::zeros({16 * 1024}, at::kFloat)));
  EXPECT_FALSE(checksum_if_small(at::zeros({16 * 1024 + 1}, at::kFloat)));
  EXPECT_FALSE(checksum_if_small(at::zeros({4}, at::TensorOptions().device(at::kMeta))));
}

TEST(AutocastState, AGuardSetsItAndPutsTheOuterStateBack) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto inside = AutocastState::current();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  {
    AutocastGuard guard(inside);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(MemoryTracker, CountsEveryByteAboveItsStart) {
  auto before = at::empty({1000}, at::kFloat);
  auto tracker = MemoryTracker::start(/*with_curve=*/true);
  {
    auto a = at::empty({1000}, at::kFloat);
    auto b = at::empty({500}, at::kFloat);
  }
  auto c = at::empty({100}, at::kFloat);
  const auto cpu = tracker->devices().at("cpu");
  tracker->stop();
  EXPECT_EQ(cpu.peak, 6000);
  EXPECT_EQ(cpu.live, 400);
  ASSERT_EQ(cpu.curve.size(), 5);
  EXPECT_EQ(cpu.curve[1].live, 6000);
  auto unseen = at::empty({1000}, at::kFloat);
  EXPECT_EQ(tracker->devices().at("cpu").live, 400);
}

TEST(MemoryTracker, ALongCurveStaysSmallAndKeepsItsPeaks) {
  auto tracker = MemoryTracker::start(/*with_curve=*/true);
  tracker->stop();
  const c10::Device device(c10::kCPU);
  const int64_t events = 5 * static_cast<int64_t>(MemoryTracker::kMostPoints);
  int64_t live = 0;
  for (int64_t i = 0; i < events; ++i) {
    // A slow saw with two needles, one event long.
    int64_t bytes = i % 1000 < 500 ? 10 : -10;
    if (i == 123457 || i == 300001) {
      bytes = 1'000'000 + i;
    } else if (i == 123458 || i == 300002) {
      bytes = -1'000'000 - (i - 1);
    }
    live += bytes;
    tracker->changed(device, bytes);
  }
  const auto cpu = tracker->devices().at("cpu");
  EXPECT_EQ(cpu.live, live);
  EXPECT_LE(cpu.curve.size(), MemoryTracker::kMostPoints);
  EXPECT_GT(cpu.curve.size(), MemoryTracker::kMostPoints / 4);
  int64_t highest = 0;
  int needles = 0;
  for (size_t i = 0; i < cpu.curve.size(); ++i) {
    highest = std::max(highest, cpu.curve[i].live);
    needles += cpu.curve[i].live > 1'000'000 ? 1 : 0;
    EXPECT_TRUE(i == 0 || cpu.curve[i - 1].seconds <= cpu.curve[i].seconds);
  }
  EXPECT_EQ(highest, cpu.peak);
  EXPECT_EQ(needles, 2);
  EXPECT_EQ(tracker->live().at("cpu"), live);
}

} // namespace
} // namespace recals
