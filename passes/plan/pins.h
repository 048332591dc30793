#pragma once

/// What the user says about storages, by name.
///
/// Note [Pins]
/// A pattern names storages by themselves or by what makes them:
///   "%x.3"        the value of that name, as plans and reports show it; "%dropout.1 saved[0]", too
///   "aten::relu"  what that op makes; "relu" is the same
///   "layer1"      what the module of that path makes, with all modules inside it
///   "layer1.*"    what the modules inside it make
/// '*' stands for any characters, dots included, and '?' for one. "value:", "op:" or "module:" in front says what is meant;
/// without it, a word that names an op and a module is refused if these make different storages. Of several pins that name
/// a storage the last one counts.

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "passes/plan/step_graph.h"

namespace recals::plan {

/// Why pins cannot be followed, in a sentence that quotes what is wrong.
struct BadPin {
  std::string message;
};

/// "must_save", "prefer_save", "prefer_recompute", "must_recompute", in any case: the words of torch's CheckpointPolicy.
std::variant<Policy, BadPin> parse_policy(std::string_view text);

/// In lower case; "" for Policy::None.
const char* name_of(Policy policy);

/// JSON, pattern to policy: {"layer1.*": "must_save", "relu": "prefer_recompute"}.
std::variant<std::vector<Pin>, BadPin> parse_pins(const std::string& json);

/// Gives every storage of `graph` the policy that `pins` say, or none. Refused are a pin that names no storage, and
/// MUST_RECOMPUTE for one that cannot be recomputed, if autograd saves it or the pin is about no other; `graph` is half
/// changed then.
std::optional<BadPin> set_policies(StepGraph& graph, std::vector<Pin> pins);

/// Does any storage have a policy?
bool has_policies(const StepGraph& graph);

} // namespace recals::plan
