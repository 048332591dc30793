/// Who hears of the CPU's allocations.

#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "runtime/cpu_memory.h"
#include "runtime/memory_tracker.h"

namespace recals {
namespace {

at::Tensor bytes(int64_t size) {
  return at::empty({size}, at::kByte);
}

int64_t live(const std::shared_ptr<MemoryTracker>& tracker) {
  const auto all = tracker->live();
  return all.count("cpu") == 0 ? 0 : all.at("cpu");
}

TEST(CpuMemory, TrackersInsideOneAnotherEndInAnyOrder) {
  auto outer = MemoryTracker::start(false);
  auto a = bytes(100);
  auto inner = MemoryTracker::start(false);
  auto b = bytes(10);
  EXPECT_EQ(live(outer), 110);
  EXPECT_EQ(live(inner), 10);
  a.reset();
  EXPECT_EQ(live(outer), 10);
  EXPECT_EQ(live(inner), 10) << "it had not heard of that block";
  outer->stop();
  b.reset();
  EXPECT_EQ(live(outer), 10) << "the figures stay";
  EXPECT_EQ(live(inner), 0);
  inner.reset();
  auto later = MemoryTracker::start(false);
  auto c = bytes(7);
  EXPECT_EQ(live(later), 7);
}

TEST(CpuMemory, AFreeIsHeardFromAnyThreadAnAllocationFromItsOwn) {
  auto tracker = MemoryTracker::start(false);
  auto ours = bytes(100);
  at::Tensor theirs;
  std::thread([&] {
    theirs = bytes(1000);
    ours.reset();
  }).join();
  EXPECT_EQ(live(tracker), 0);
  theirs.reset();
  EXPECT_EQ(live(tracker), 0);
  // A thread that works for this one, as autograd's do.
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    theirs = bytes(50);
  }).join();
  EXPECT_EQ(live(tracker), 50);
}

TEST(CpuMemory, WhatIsUnheardStaysSo) {
  auto tracker = MemoryTracker::start(false);
  std::optional<at::Tensor> unheard;
  {
    const CpuMemoryUnheard nobody;
    unheard = bytes(100);
  }
  EXPECT_EQ(live(tracker), 0);
  unheard.reset();
  EXPECT_EQ(live(tracker), 0);
}

TEST(CpuMemory, BlocksFromBeforeAreFreedAsTheyWere) {
  auto* torchs = c10::GetDefaultCPUAllocator();
  auto* own = c10::GetCPUAllocator();
  ASSERT_NE(torchs, own);
  auto tracker = MemoryTracker::start(false);
  // Made by torch's allocator, freed through the one in front of it, and the other way round.
  own->raw_deallocate(torchs->raw_allocate(64));
  void* block = own->raw_allocate(64);
  EXPECT_EQ(live(tracker), 64);
  own->raw_deallocate(block);
  EXPECT_EQ(live(tracker), 0);
  EXPECT_TRUE(own->is_simple_data_ptr(own->allocate(8)));
  EXPECT_EQ(own->allocate(0).get(), nullptr);
}

TEST(CpuMemory, AnotherAllocatorIsAnError) {
  auto* own = c10::GetCPUAllocator();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  EXPECT_THROW(MemoryTracker::start(false), c10::Error);
  c10::SetCPUAllocator(own);
  auto tracker = MemoryTracker::start(false);
  auto a = bytes(3);
  EXPECT_EQ(live(tracker), 3);
}

TEST(CpuMemory, TorchsProfilerIsNotDisturbed) {
  using namespace torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  using torch::profiler::impl::ProfilerConfig;
  const ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO, false, /*profile_memory=*/true);
  for (const bool tracker_first : {false, true}) {
    for (const bool tracker_ends_first : {false, true}) {
      std::shared_ptr<MemoryTracker> tracker;
      if (tracker_first) {
        tracker = MemoryTracker::start(false);
      }
      prepareProfiler(config, {ActivityType::CPU});
      enableProfiler(config, {ActivityType::CPU});
      if (!tracker_first) {
        tracker = MemoryTracker::start(false);
      }
      auto a = at::add(at::ones({25}), 1);
      EXPECT_EQ(live(tracker), 100);
      if (tracker_ends_first) {
        tracker->stop();
      }
      const auto result = disableProfiler();
      tracker->stop();
      int64_t heard = 0;
      for (const auto& event : result->events()) {
        heard += event.name() == "[memory]" ? event.nBytes() : 0;
      }
      EXPECT_EQ(heard, 100);
    }
  }
}

} // namespace
} // namespace recals
