/// Generator and autocast state, and the memory tracker.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "runtime/autocast_state.h"
#include "runtime/memory_tracker.h"
#include "runtime/rng_state.h"

namespace recals {
namespace {

TEST(RngState, AGuardDrawsAgainAndPutsTheOuterStateBack) {
  at::manual_seed(5);
  const auto state = RngState::of(c10::kCPU);
  const auto first = at::rand({8});
  const auto second_state = RngState::of(c10::kCPU);
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
  const auto state = RngState::of(c10::kCPU);
  at::rand({3});
  const auto outer = RngState::of(c10::kCPU);
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

TEST(RngState, OnMetaAStandInOfTheSameSizeIsKept) {
  EXPECT_EQ(
      RngState::bytes(c10::kCPU),
      static_cast<int64_t>(at::globalContext().defaultGenerator(c10::kCPU).get_state().storage().nbytes()));
  RngState::of(c10::Device(c10::kMeta)).restore(); // nothing to restore, nothing thrown
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
    tracker->reportMemoryUsage(nullptr, bytes, 0, 0, device);
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
