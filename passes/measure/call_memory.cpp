#include "passes/measure/call_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "passes/measure/cache_folder.h"
#include "runtime/checksum.h"

namespace recals::call_memory {

namespace {

constexpr int kFormat = 4;

struct Table {
  std::mutex mutex;
  bool loaded = false;
  std::unordered_map<CallKey, CallMemory, CallKeyHash> known;
};

Table& table() {
  static auto& instance = *new Table;
  return instance;
}

/// What kernels and their blocking depend on: the processor, and the build of torch.
std::string machine() {
  std::string text = at::get_cpu_capability() + TORCH_VERSION + at::get_mkldnn_version();
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line) && !line.empty();) { // of the first processor
    if (line.rfind("model name", 0) == 0 || line.rfind("flags", 0) == 0 || line.rfind("cache size", 0) == 0) {
      text += line;
    }
  }
  return text;
}

/// In hexadecimal.
std::string sum_of(const std::string& text) {
  std::ostringstream sum;
  sum << std::hex << checksum_of(text.data(), text.size()).one;
  return sum.str();
}

void load(Table& table) {
  table.loaded = true;
  const auto file_path = path();
  std::ifstream file(file_path);
  size_t damaged = 0;
  for (std::string line; std::getline(file, line);) {
    if (auto entry = parse_line(line)) {
      table.known.insert_or_assign(entry->first, std::move(entry->second));
    } else {
      ++damaged;
    }
  }
  if (damaged > 0) {
    TORCH_WARN(
        "recals: ", damaged, " damaged lines of ", file_path, " are left out; what they said will be measured again");
  }
}

} // namespace

std::string path() {
  if (const char* chosen = std::getenv("RECALS_SCRATCH_CACHE")) {
    return chosen;
  }
  const auto folder = cache_folder();
  return folder.empty() ? "" : folder + "/scratch-" + std::to_string(kFormat) + "-" + sum_of(machine()) + ".txt";
}

std::string line_of(const CallKey& key, const CallMemory& memory) {
  std::ostringstream text;
  text << std::hex << key.one << ' ' << key.other << std::dec << ' ' << memory.peak << ' ' << memory.measured << ' '
       << memory.results.size();
  for (const int64_t bytes : memory.results) {
    text << ' ' << bytes;
  }
  return text.str() + " " + sum_of(text.str());
}

std::optional<std::pair<CallKey, CallMemory>> parse_line(const std::string& line) {
  const auto last = line.rfind(' ');
  if (last == std::string::npos || line.substr(last + 1) != sum_of(line.substr(0, last))) {
    return std::nullopt;
  }
  std::istringstream text(line.substr(0, last));
  std::pair<CallKey, CallMemory> entry;
  size_t results = 0;
  text >> std::hex >> entry.first.one >> entry.first.other >> std::dec >> entry.second.peak >> entry.second.measured >>
      results;
  for (int64_t bytes = 0; results > 0 && text >> bytes; --results) {
    entry.second.results.push_back(bytes);
  }
  return text.fail() || results > 0 ? std::nullopt : std::optional(std::move(entry));
}

std::optional<CallMemory> find(const CallKey& key) {
  auto& all = table();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.loaded) {
    load(all);
  }
  const auto known = all.known.find(key);
  return known == all.known.end() ? std::nullopt : std::optional(known->second);
}

void add(const std::vector<std::pair<CallKey, CallMemory>>& measured) {
  std::string lines;
  {
    auto& all = table();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& [key, memory] : measured) {
      all.known.insert_or_assign(key, memory);
      lines += line_of(key, memory) + "\n";
    }
  }
  const std::filesystem::path file_path = path();
  if (file_path.empty() || lines.empty()) {
    return;
  }
  // What cannot be written is measured again by the next process: no reason to end this one.
  std::error_code ignored;
  std::filesystem::create_directories(file_path.parent_path(), ignored);
  const int file = open(file_path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return;
  }
  if (flock(file, LOCK_EX) == 0) {
    for (size_t done = 0; done < lines.size();) {
      const auto count = write(file, lines.data() + done, lines.size() - done);
      if (count <= 0) {
        break;
      }
      done += static_cast<size_t>(count);
    }
  }
  close(file); // and with it goes the lock
}

void forget() {
  auto& all = table();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.known.clear();
  all.loaded = false;
}

} // namespace recals::call_memory
