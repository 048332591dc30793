#include <algorithm>
#include <cstdio>
#include <sstream>

#include <c10/util/StringUtil.h>

#include "passes/plan/budget.h"
#include "passes/report/report.h"

namespace recals {
namespace {

using plan::human_bytes;

constexpr int kBytesWidth = 12;
constexpr int kChartWidth = 72;
constexpr int kChartHeight = 8;

/// `text` right-aligned in `width` columns of ASCII.
std::string right(const std::string& text, int width) {
  return std::string(std::max<int>(0, width - static_cast<int>(text.size())), ' ') + text;
}

std::string percent(int64_t part, int64_t whole) {
  char text[16];
  std::snprintf(text, sizeof(text), "%5.1f %%", whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / whole);
  return text;
}

std::string exact(int64_t bytes) {
  return human_bytes(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

std::string describe(const Place& place) {
  std::string text = place.op;
  if (!place.forward_op.empty()) {
    text += ", the derivative of " + place.forward_op + ",";
  }
  if (place.module != kOutside) {
    text += place.module.empty() ? "" : " of " + place.module;
    text += place.where.empty() ? "" : " at " + place.where;
  }
  return text +
      (place.phase == Phase::Replay ? ", recomputed in the backward" : std::string(" in the ") + name_of(place.phase));
}

/// One table of shares. Those that are not shown are summed up in a line of their own.
void table(
    std::ostream& out,
    const std::string& title,
    const std::vector<Share>& shares,
    const DeviceReport& device,
    int rows) {
  auto line = [&](const std::string& held, const std::string& peak, const std::string& part, const std::string& name) {
    out << "  " << right(held, kBytesWidth + 1) << right(peak, kBytesWidth + 1) << right(part, 10) << "  " << name
        << "\n";
  };
  auto numbers = [&](int64_t held, int64_t peak, const std::string& name) {
    line(human_bytes(held), human_bytes(peak), percent(peak, device.peak), name);
  };
  out << "\n";
  line("forward's end", "peak", "of it", title);
  Share rest;
  int shown = 0;
  int left = 0;
  for (const auto& share : shares) {
    if (share.held == 0 && share.peak == 0) {
      continue;
    }
    if (shown < rows) {
      numbers(share.held, share.peak, share.name);
      ++shown;
    } else {
      rest.held += share.held;
      rest.peak += share.peak;
      ++left;
    }
  }
  if (left > 0) {
    numbers(rest.held, rest.peak, "(" + std::to_string(left) + " more)");
  }
  numbers(device.held, device.peak, "in all");
}

/// Modules of modules summed up, so that the whole fits into so many rows: the largest is taken apart again and again, as
/// long as there is room for its parts.
std::vector<Share> summed_up(const std::vector<Share>& modules, int rows) {
  // `name` is a path; all modules below it are in it.
  std::vector<Share> shown;
  auto inside = [](const std::string& module, const std::string& path) {
    return path.empty() || module == path ||
        (module.size() > path.size() && module[path.size()] == '.' && module.compare(0, path.size(), path) == 0);
  };
  auto parts_of = [&](const std::string& path) {
    std::vector<Share> parts;
    for (const auto& module : modules) {
      if (module.name == kOutside || !inside(module.name, path)) {
        continue;
      }
      // The path, or the next name after it.
      const size_t from = path.empty() ? 0 : path.size() + 1;
      const auto part = module.name.size() <= path.size() ? path : module.name.substr(0, module.name.find('.', from));
      auto known = std::find_if(parts.begin(), parts.end(), [&](const Share& share) { return share.name == part; });
      if (known == parts.end()) {
        known = parts.insert(parts.end(), Share{part, 0, 0});
      }
      known->held += module.held;
      known->peak += module.peak;
    }
    return parts;
  };
  auto order = [](const Share& a, const Share& b) { return std::pair(a.peak, a.held) > std::pair(b.peak, b.held); };
  shown = parts_of("");
  for (const auto& module : modules) {
    if (module.name == kOutside) {
      shown.push_back(module);
    }
  }
  std::vector<std::string> whole; // cannot be taken apart, or not within the rows
  while (true) {
    std::stable_sort(shown.begin(), shown.end(), order);
    const auto next = std::find_if(shown.begin(), shown.end(), [&](const Share& share) {
      return share.name != kOutside && std::find(whole.begin(), whole.end(), share.name) == whole.end();
    });
    if (next == shown.end()) {
      break;
    }
    const auto path = next->name;
    whole.push_back(path);
    const auto parts = path.empty() ? std::vector<Share>{} : parts_of(path);
    if (parts.empty() || (parts.size() == 1 && parts[0].name == path) ||
        shown.size() - 1 + parts.size() > static_cast<size_t>(rows)) {
      continue;
    }
    shown.erase(next);
    shown.insert(shown.end(), parts.begin(), parts.end());
  }
  for (auto& share : shown) {
    share.name = share.name.empty() ? "(the module itself)" : share.name;
  }
  return shown;
}

/// Columns of equal estimated time; a column is as high as the most that is live in it. Where no times are known, columns
/// of equally many moments.
std::vector<int64_t> columns(const DeviceReport& device, std::vector<int>& last_point) {
  std::vector<int64_t> highest(kChartWidth, 0);
  last_point.assign(kChartWidth, -1);
  const auto& curve = device.curve;
  const double whole = curve.empty() ? 0 : curve.back().seconds;
  for (size_t p = 0; p < curve.size(); ++p) {
    auto column = [&](double from_start, double of) {
      return std::clamp(static_cast<int>(from_start / of * kChartWidth), 0, kChartWidth - 1);
    };
    const double begin = whole > 0 ? (p == 0 ? 0 : curve[p - 1].seconds) : static_cast<double>(p);
    const double end = whole > 0 ? curve[p].seconds : static_cast<double>(p);
    const double of = whole > 0 ? whole : static_cast<double>(curve.size());
    for (int c = column(begin, of); c <= column(end, of); ++c) {
      highest[c] = std::max(highest[c], curve[p].most);
      last_point[c] = static_cast<int>(p);
    }
  }
  return highest;
}

void chart(std::ostream& out, const DeviceReport& device) {
  std::vector<int> last_point;
  const auto highest = columns(device, last_point);
  out << "\n  memory over the estimated time of the step\n";
  for (int row = kChartHeight; row > 0; --row) {
    const int64_t level = device.peak / kChartHeight * row;
    out << "  " << right(human_bytes(level), kBytesWidth + 1) << " |";
    std::string line;
    for (const int64_t bytes : highest) {
      // Filled where more than half of the row's band is.
      line += bytes * kChartHeight * 2 > device.peak * (2 * row - 1) ? '#' : ' ';
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
  out << "  " << right("", kBytesWidth + 1) << " +";
  int end_of_forward = 0;
  for (int c = 0; c < kChartWidth; ++c) {
    if (last_point[c] >= 0 && device.curve[last_point[c]].place.phase == Phase::Forward) {
      end_of_forward = c + 1;
    }
  }
  out << std::string(end_of_forward, '-') << '+' << std::string(std::max(0, kChartWidth - end_of_forward - 1), '-')
      << "\n";
  const std::string forward = end_of_forward >= 7 ? "forward" : "";
  out << "  " << right("", kBytesWidth + 3) << forward << std::string(end_of_forward - forward.size() + 1, ' ')
      << "backward\n";
}

void largest(std::ostream& out, const Report& report, int rows) {
  out << "\n  largest storages of the forward (* live at the peak)\n";
  size_t widest = 0;
  const size_t count = std::min<size_t>(rows, report.storages.size());
  for (size_t s = 0; s < count; ++s) {
    widest = std::max(widest, report.storages[s].name.size());
  }
  for (size_t s = 0; s < count; ++s) {
    const auto& storage = report.storages[s];
    out << "  " << right(human_bytes(storage.bytes), kBytesWidth + 1) << (storage.at_peak ? " *" : "  ") << " "
        << storage.name << std::string(widest - storage.name.size(), ' ') << "  " << storage.dtype << "  "
        << name_of(storage.use) << "  " << storage.made.op;
    if (!storage.made.module.empty()) {
      out << " of " << storage.made.module;
    }
    if (!storage.made.where.empty()) {
      out << " at " << storage.made.where;
    }
    out << "\n";
  }
}

/// One line, or nothing where no kernel takes scratch memory.
std::string scratch_in_words(const plan::ScratchFacts& scratch) {
  std::string words;
  auto add = [&](int calls, const char* name) {
    if (calls > 0) {
      words += (words.empty() ? "" : ", ") + std::to_string(calls) + " " + name;
    }
  };
  add(scratch.measured, "measured here");
  add(scratch.derived, "derived from torch's sources");
  add(scratch.bounded, "bounded by rules");
  if (!scratch.bounded_ops.empty()) {
    words += " (" + c10::Join(", ", scratch.bounded_ops) + ")";
  }
  return words.empty() ? "" : "\nscratch memory of kernel calls: " + words + "\n";
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", seconds * 1e3);
  return text;
}

} // namespace

std::string to_text(const Report& report, int rows) {
  std::ostringstream out;
  for (const auto& device : report.devices) {
    out << device.name << ": peak " << exact(device.peak) << "\n"
        << "  " << describe(device.peak_at) << "\n";
    if (device.budget >= 0) {
      out << "  budget " << exact(device.budget) << "\n";
    }
    if (device.plain_peak >= 0) {
      out << "  without a plan the peak is " << exact(device.plain_peak) << "\n";
    }
    if (!device.overlap.empty()) {
      out << "  it may be higher: " << device.overlap << "\n";
    }
    out << "  held at the end of the forward " << exact(device.held) << "\n"
        << "  estimated: forward " << milliseconds(report.forward_seconds) << ", backward "
        << milliseconds(report.backward_seconds);
    if (report.recompute_seconds > 0) {
      out << ", recomputing " << milliseconds(report.recompute_seconds);
    }
    out << " (cost model: " << report.cost_model.name << ")\n";
    chart(out, device);
    table(out, "by use", device.uses, device, kUses);
    table(out, "by module", summed_up(device.modules, rows), device, rows);
    table(out, "by op", device.ops, device, rows);
    table(out, "by dtype", device.dtypes, device, rows);
  }
  largest(out, report, rows);
  out << scratch_in_words(report.scratch);
  return out.str();
}

} // namespace recals
