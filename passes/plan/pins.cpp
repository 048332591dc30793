#include "passes/plan/pins.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <set>

#include <nlohmann/json.hpp>

namespace recals::plan {
namespace {

constexpr Policy kPolicies[] = {Policy::MustSave, Policy::PreferSave, Policy::PreferRecompute, Policy::MustRecompute};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

/// '*' and '?' as Note [Pins] has them.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos; // the last one, which has taken the text up to `taken` so far
  size_t taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

/// "relu" of "aten::relu".
std::string_view bare_op(std::string_view op) {
  const size_t colons = op.rfind("::");
  return colons == std::string_view::npos ? op : op.substr(colons + 2);
}

/// What a pattern is compared with.
enum class Kind : uint8_t { Value, Op, Module };

constexpr std::pair<std::string_view, Kind> kPrefixes[] = {
    {"value:", Kind::Value},
    {"op:", Kind::Op},
    {"module:", Kind::Module}};

/// The path and those of the modules around it, the module itself first: "a.b.c", "a.b", "a". What stands outside of all
/// modules but the outermost has only its own, "".
std::vector<std::string_view> paths_of(std::string_view module) {
  std::vector<std::string_view> paths{module};
  for (size_t dot = module.rfind('.'); dot != std::string_view::npos; dot = module.rfind('.', dot - 1)) {
    module = module.substr(0, dot);
    paths.push_back(module);
    if (dot == 0) {
      break;
    }
  }
  return paths;
}

/// The names that a node, or a storage that it makes, goes by.
std::vector<std::string_view> names_of(Kind kind, const Node& node, const Storage* storage) {
  switch (kind) {
    case Kind::Value:
      return storage == nullptr ? std::vector<std::string_view>{} : std::vector<std::string_view>{storage->name};
    case Kind::Op:
      return {node.op, bare_op(node.op)};
    case Kind::Module:
      break;
  }
  return paths_of(node.module);
}

size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t change = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// One pattern, taken apart.
class Pattern {
 public:
  explicit Pattern(const std::string& text) : text_(text), kinds_{Kind::Op, Kind::Module} {
    for (const auto& [prefix, kind] : kPrefixes) {
      if (starts_with(text_, prefix)) {
        kinds_ = {kind};
        text_.remove_prefix(prefix.size());
        return;
      }
    }
    if (starts_with(text_, "%")) {
      kinds_ = {Kind::Value};
    } else if (text_.find("::") != std::string_view::npos) {
      kinds_ = {Kind::Op};
    }
  }

  const std::vector<Kind>& kinds() const {
    return kinds_;
  }

  bool names(Kind kind, const Node& node, const Storage* storage) const {
    const auto names = names_of(kind, node, storage);
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return matches(text_, name); });
  }

  std::vector<int> storages(const StepGraph& graph, Kind kind) const {
    std::vector<int> found;
    for (size_t s = 0; s < graph.storages.size(); ++s) {
      if (names(kind, graph.nodes[graph.storages[s].producer], &graph.storages[s])) {
        found.push_back(static_cast<int>(s));
      }
    }
    return found;
  }

  bool names_a_node(const StepGraph& graph) const {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      return std::any_of(kinds_.begin(), kinds_.end(), [&](Kind kind) { return names(kind, node, nullptr); });
    });
  }

  /// Some names that there are and that look like it, quoted.
  std::string near(const StepGraph& graph) const {
    std::string plain(text_);
    plain.erase(std::remove_if(plain.begin(), plain.end(), [](char c) { return c == '*' || c == '?'; }), plain.end());
    std::set<std::pair<size_t, std::string>> known;
    for (const Kind kind : kinds_) {
      for (const Storage& storage : graph.storages) {
        for (const std::string_view name : names_of(kind, graph.nodes[storage.producer], &storage)) {
          if (!name.empty()) {
            known.emplace(edits_between(plain, name), name);
          }
        }
      }
    }
    constexpr int kMostNames = 5;
    std::string list;
    int shown = 0;
    for (auto name = known.begin(); name != known.end() && shown < kMostNames; ++name, ++shown) {
      list += (list.empty() ? "'" : ", '") + name->second + "'";
    }
    return list;
  }

 private:
  std::string_view text_;
  std::vector<Kind> kinds_;
};

BadPin refuse(const Pin& pin, const std::string& why) {
  return {"the pin '" + pin.pattern + "' " + why};
}

std::variant<std::vector<int>, BadPin> storages_of(const StepGraph& graph, const Pin& pin) {
  if (pin.pattern.empty()) {
    return refuse(pin, "names nothing: a pattern is a module path, an op, or a value's name with its '%'");
  }
  const Pattern pattern(pin.pattern);
  std::vector<int> found;
  for (const Kind kind : pattern.kinds()) {
    const auto storages = pattern.storages(graph, kind);
    if (!found.empty() && !storages.empty() && found != storages) {
      return refuse(
          pin,
          "names an op and a module, which make different storages; write 'op:" + pin.pattern +
              "' or 'module:" + pin.pattern + "'");
    }
    found = storages.empty() ? found : storages;
  }
  if (!found.empty()) {
    return found;
  }
  if (pattern.names_a_node(graph)) {
    return refuse(pin, "names only what makes nothing that could be kept: views, or results that are gone at once");
  }
  const std::string near = pattern.near(graph);
  return refuse(pin, "names nothing in this step" + (near.empty() ? "" : "; near names are " + near));
}

/// Why the storage cannot be recomputed; empty if it can.
std::string obstacle_of(const Storage& storage) {
  if (storage.output) {
    return "the caller holds it";
  }
  if (storage.pinned) {
    return "something that Recals cannot see holds it";
  }
  return storage.recomputable ? "" : "its producer must not run twice, or it is written to afterwards";
}

} // namespace

const char* name_of(Policy policy) {
  switch (policy) {
    case Policy::None:
      break;
    case Policy::MustSave:
      return "must_save";
    case Policy::PreferSave:
      return "prefer_save";
    case Policy::PreferRecompute:
      return "prefer_recompute";
    case Policy::MustRecompute:
      return "must_recompute";
  }
  return "";
}

std::variant<Policy, BadPin> parse_policy(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const Policy policy : kPolicies) {
    if (lower == name_of(policy)) {
      return policy;
    }
  }
  return BadPin{
      "'" + std::string(text) +
      "' is no policy; there are must_save, prefer_save, prefer_recompute and must_recompute"};
}

std::variant<std::vector<Pin>, BadPin> parse_pins(const std::string& json) {
  using Json = nlohmann::ordered_json;
  std::set<std::string> keys;
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && !keys.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  const Json document = Json::parse(json, watch, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return BadPin{"pins are a JSON object from patterns to policies: {\"layer1.*\": \"must_save\"}"};
  }
  if (!twice.empty()) {
    return BadPin{"the pin '" + twice + "' is given twice"};
  }
  std::vector<Pin> pins;
  for (const auto& [pattern, value] : document.items()) {
    if (!value.is_string()) {
      return BadPin{"the pin '" + pattern + "' has the policy " + value.dump() + ", which is no text"};
    }
    auto policy = parse_policy(value.get<std::string>());
    if (auto* bad = std::get_if<BadPin>(&policy)) {
      return BadPin{"the pin '" + pattern + "': " + bad->message};
    }
    pins.push_back({pattern, std::get<Policy>(policy)});
  }
  return pins;
}

std::optional<BadPin> set_policies(StepGraph& graph, std::vector<Pin> pins) {
  for (Storage& storage : graph.storages) {
    storage.policy = Policy::None;
    storage.pin = -1;
  }
  for (size_t p = 0; p < pins.size(); ++p) {
    const auto named = storages_of(graph, pins[p]);
    if (const auto* bad = std::get_if<BadPin>(&named)) {
      return *bad;
    }
    for (const int s : std::get<std::vector<int>>(named)) {
      graph.storages[s].policy = pins[p].policy;
      graph.storages[s].pin = static_cast<int>(p);
    }
  }
  std::vector<bool> saved(graph.storages.size(), false);
  for (const Slot& slot : graph.slots) {
    saved[slot.storage] = true;
  }
  std::vector<int> obeyed(pins.size(), 0);
  for (const Storage& storage : graph.storages) {
    if (storage.policy == Policy::MustRecompute) {
      obeyed[storage.pin] += obstacle_of(storage).empty() ? 1 : 0;
    }
  }
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    const Storage& storage = graph.storages[s];
    const std::string obstacle = obstacle_of(storage);
    // What nobody saves is not held for the backward anyway; a pin that is about nothing else is a mistake.
    if (storage.policy == Policy::MustRecompute && !obstacle.empty() && (saved[s] || obeyed[storage.pin] == 0)) {
      const Node& producer = graph.nodes[storage.producer];
      return refuse(
          pins[storage.pin],
          "says must_recompute of '" + storage.name + "' (" + producer.op +
              (producer.module.empty() ? "" : " of " + producer.module) +
              (producer.where.empty() ? "" : " at " + producer.where) + "), which cannot be recomputed: " + obstacle +
              ". A later pin can exempt it, or say prefer_recompute");
    }
  }
  graph.pins = std::move(pins);
  return std::nullopt;
}

bool has_policies(const StepGraph& graph) {
  return std::any_of(graph.storages.begin(), graph.storages.end(), [](const Storage& storage) {
    return storage.policy != Policy::None;
  });
}

} // namespace recals::plan
