#pragma once

/// Who hears of the bytes that torch's allocators hand out and take back.

#include <torch/csrc/profiler/orchestration/observer.h>

namespace recals {

/// Allocators report to what stands in the slot DebugInfoKind::PROFILER_STATE of the thread, and others take what stands
/// there for one of torch's profilers: functions of Python's autograd.Function ask it for its settings. So a listener is
/// such a profiler, one that is switched off.
class MemoryListener : public torch::profiler::impl::ProfilerStateBase {
 public:
  MemoryListener()
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {}
  bool memoryProfilingEnabled() const override {
    return true;
  }
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
};

} // namespace recals
