#include "runtime/graph_passes.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <stdexcept>

namespace recals {
namespace {

/// What stands in every pipeline (passes/registry.cpp) and can be followed.
constexpr const char* kAnchors[] = {"graph", "sizes", "plan", "boundaries"};

struct Table {
  std::mutex mutex;
  std::vector<GraphPass> passes;
};

Table& table() {
  // Never destroyed: a pass may hold a Python function, and Python is gone before static objects are.
  static auto& instance = *new Table;
  return instance;
}

[[noreturn]] void refuse(const std::string& why) {
  throw std::invalid_argument("recals: " + why);
}

bool good_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
}

} // namespace

void register_graph_pass(GraphPass pass) {
  if (!good_name(pass.name)) {
    refuse("a pass is called by letters, digits, '-' and '_', not '" + pass.name + "'");
  }
  if (!pass.run) {
    refuse("the pass '" + pass.name + "' has no function");
  }
  auto& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  bool anchored = std::find(std::begin(kAnchors), std::end(kAnchors), pass.after) != std::end(kAnchors);
  for (const auto& other : known.passes) {
    if (other.name == pass.name) {
      refuse("there is a pass '" + pass.name + "' already; unregister it first");
    }
    anchored = anchored || other.name == pass.after;
  }
  if (!anchored) {
    refuse(
        "the pass '" + pass.name + "' cannot stand after '" + pass.after +
        "'; it can stand after graph, sizes, plan, boundaries, or a pass that was added before it");
  }
  known.passes.push_back(std::move(pass));
}

void unregister_graph_pass(const std::string& name) {
  auto& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  auto found = known.passes.end();
  for (auto it = known.passes.begin(); it != known.passes.end(); ++it) {
    if (it->after == name) {
      refuse("the pass '" + it->name + "' stands after '" + name + "'; unregister that first");
    }
    found = it->name == name ? it : found;
  }
  if (found == known.passes.end()) {
    refuse("no pass '" + name + "' was added");
  }
  known.passes.erase(found);
}

std::vector<GraphPass> graph_passes() {
  auto& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  return known.passes;
}

} // namespace recals
