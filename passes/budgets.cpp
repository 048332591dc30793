#include "passes/budgets.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <unordered_set>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/StringUtil.h>

#include "passes/plan/planner.h"

namespace recals {

namespace {

/// The number behind `key` in a file of lines "key number", or the file's only number if `key` is empty. Nothing where
/// there is none ("max").
std::optional<int64_t> number_in(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string first = key;
    if (!key.empty()) {
      words >> first;
    }
    int64_t number = 0;
    if (first == key && words >> number) {
      return number;
    }
  }
  return std::nullopt;
}

/// The names of a control group's files: of version 2, and of version 1.
struct GroupFiles {
  const char* folder;
  const char* limit;
  const char* use;
  const char* cache; ///< in memory.stat
};

constexpr GroupFiles kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1{
    "/sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file"};

/// What the group of that path and the groups around it still allow.
int64_t group_allows(const std::string& root, const GroupFiles& files, std::string path) {
  int64_t least = std::numeric_limits<int64_t>::max();
  while (true) {
    const std::string group = root + files.folder + path + "/";
    const auto limit = number_in(group + files.limit);
    const auto use = number_in(group + files.use);
    if (limit && use) {
      const int64_t cache = number_in(group + "memory.stat", files.cache).value_or(0);
      least = std::min(least, std::max<int64_t>(*limit - *use + cache, 0));
    }
    if (path.empty()) {
      return least;
    }
    path.resize(path.rfind('/'));
  }
}

int64_t free_device_bytes(c10::Device device) {
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(device.type());
  TORCH_CHECK_VALUE(
      hooks.deviceCount() > device.index(),
      "recals: the budget 'auto' is what a device has free, but there is no ",
      device,
      " here; give a number of bytes");
  at::globalContext().lazyInitDevice(device.type());
  auto* allocator = c10::getDeviceAllocator(device.type());
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int64_t unused = stats.reserved_bytes[kAll].current - stats.active_bytes[kAll].current;
  return static_cast<int64_t>(allocator->getMemoryInfo(device.index()).first) + std::max<int64_t>(unused, 0);
}

} // namespace

int64_t free_host_bytes(const std::string& root) {
  const auto available = number_in(root + "/proc/meminfo", "MemAvailable:"); // in KiB
  int64_t least = available ? *available * 1024 : std::numeric_limits<int64_t>::max();
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line; // number:controllers:/path
  while (std::getline(groups, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const auto path = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, group_allows(root, kVersion2, path));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, group_allows(root, kVersion1, path));
    }
  }
  return least;
}

Room room_on(const torch::jit::Module& module, c10::Device device, bool moves) {
  Room room;
  room.free = device.is_cpu() ? free_host_bytes() : free_device_bytes(device);
  room.slack = room.free / 20;
  std::unordered_set<const c10::TensorImpl*> seen; // tied parameters count once
  const auto count = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) {
      return;
    }
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (tensor.device() != device) {
      if (!moves) {
        return;
      }
      room.moved += bytes;
    }
    if (tensor.requires_grad()) {
      const bool has_gradient = tensor.grad().defined() && tensor.grad().device() == device;
      room.gradients += has_gradient ? 0 : bytes;
      room.optimizer += 2 * bytes;
    }
  };
  for (const auto& parameter : module.parameters()) {
    count(parameter);
  }
  for (const auto& buffer : module.buffers()) {
    count(buffer);
  }
  return room;
}

namespace {

int64_t bytes_for(
    const plan::Limit& limit,
    int64_t plain_peak,
    const torch::jit::Module& module,
    c10::Device device,
    bool moves) {
  using Kind = plan::Limit::Kind;
  if (limit.kind == Kind::Min) {
    return kSmallest;
  }
  if (limit.kind != Kind::Auto) {
    return plan::bytes_of(limit, plain_peak);
  }
  const auto room = room_on(module, device, moves);
  TORCH_CHECK_VALUE(
      room.budget() > 0,
      "recals: the budget 'auto' leaves nothing for a step on ",
      device,
      ": ",
      plan::human_bytes(room.free),
      " are free, of which ",
      plan::human_bytes(room.slack),
      " are left as slack, and training needs ",
      plan::human_bytes(room.moved + room.gradients + room.optimizer),
      " besides (parameters to move, gradients, the optimizer's state). Give a number of bytes.");
  return room.budget();
}

} // namespace

std::vector<int64_t> budgets_of(
    const StepOptions& options,
    const std::vector<std::string>& devices,
    const std::vector<int64_t>& plain_peaks,
    const torch::jit::Module& module) {
  std::vector<int64_t> budgets(devices.size(), plan::kNoBudget);
  const bool moves = options.target.device.has_value();
  const bool accelerated = std::any_of(devices.begin(), devices.end(), [](const auto& name) { return name != "cpu"; });
  for (const auto& [name, limit] : options.limits) {
    if (!name.empty() && std::find(devices.begin(), devices.end(), name) == devices.end()) {
      throw BadBudget("recals: there is a budget for '" + name + "', but the step runs on " + c10::Join(", ", devices));
    }
    for (size_t d = 0; d < devices.size(); ++d) {
      if (name.empty() ? !accelerated || devices[d] != "cpu" : devices[d] == name) {
        budgets[d] = bytes_for(limit, plain_peaks[d], module, c10::Device(devices[d]), moves);
      }
    }
  }
  return budgets;
}

} // namespace recals
