#pragma once

/// What kernel calls were measured to take, for this process and, in a file, for the next ones.
///
/// The file is one of lines, in the cache folder (cache_folder.h); its name has a format version and a digest of what the
/// numbers hold for: processor, build of torch. Threads and switches belong to each call's key. Several processes may add to
/// it at once: each appends whole lines under a lock. Every line ends with a check sum; one that is damaged is left out, and
/// said once. RECALS_SCRATCH_CACHE names another file, or none if it is empty.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "passes/measure/call_spec.h"

namespace recals {

/// Of one call, in bytes.
struct CallMemory {
  /// The most that was allocated at once within the call, what it returns included.
  int64_t peak = 0;
  std::vector<int64_t> results; ///< sizes of the storages of the tensors that it returns
  bool measured = true; ///< false: the call failed when it was made, so nothing is known
};

namespace call_memory {

std::optional<CallMemory> find(const CallKey& key);

/// For this process and, if there is a file, for others.
void add(const std::vector<std::pair<CallKey, CallMemory>>& measured);

/// Forgets what this process knows, so that the file is read again. For tests.
void forget();

/// Of the file; "" for none.
std::string path();

/// A line of the file, and what it says; nothing for a damaged one.
std::string line_of(const CallKey& key, const CallMemory& memory);
std::optional<std::pair<CallKey, CallMemory>> parse_line(const std::string& line);

} // namespace call_memory

} // namespace recals
