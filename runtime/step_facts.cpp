#include "runtime/step_facts.h"

#include <algorithm>
#include <sstream>

namespace recals {

namespace {

std::string in_words(const std::vector<SlotFact>& slots) {
  std::string words;
  for (const auto& slot : slots) {
    words += (words.empty() ? "" : ", ") + slot.saved_by + " of " + std::to_string(slot.bytes) + " bytes";
  }
  return words.empty() ? "nothing" : words;
}

/// Those of `met` that have no counterpart of the same name and at least as many bytes in `expected`.
std::vector<SlotFact> more_than(std::vector<SlotFact> expected, const std::vector<SlotFact>& met) {
  std::vector<SlotFact> more;
  for (auto slot = met.rbegin(); slot != met.rend(); ++slot) { // the largest of a name first
    const auto found = std::find_if(expected.rbegin(), expected.rend(), [&](const SlotFact& other) {
      return other.saved_by == slot->saved_by && other.bytes >= slot->bytes;
    });
    if (found == expected.rend()) {
      more.push_back(*slot);
    } else {
      expected.erase(std::next(found).base());
    }
  }
  return more;
}

} // namespace

std::string lines_of(const StepFacts& facts) {
  std::ostringstream text;
  text << "nodes " << facts.size() << '\n';
  for (size_t node = 0; node < facts.size(); ++node) {
    if (!facts[node].empty()) {
      text << node;
      for (const auto& slot : facts[node]) {
        text << ' ' << slot.saved_by << ' ' << slot.bytes;
      }
      text << '\n';
    }
  }
  return text.str();
}

StepFacts parse_step_facts(const std::string& text) {
  std::istringstream lines(text);
  std::string word;
  size_t nodes = 0;
  TORCH_CHECK(
      lines >> word >> nodes, "recals: the facts of this plan's step are damaged: they do not say of how many nodes");
  StepFacts facts(nodes);
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::istringstream words(line);
    size_t node = 0;
    TORCH_CHECK(words >> node && node < nodes, "recals: the facts of this plan's step are damaged: '", line, "'");
    for (SlotFact slot; words >> slot.saved_by;) {
      TORCH_CHECK(words >> slot.bytes, "recals: the facts of this plan's step are damaged: '", line, "'");
      facts[node].push_back(slot);
    }
  }
  return facts;
}

bool is_from_outside(const Program& program, const SavedSlot& slot) {
  return slot.reg >= 0 && program.registers[slot.reg].producer < 0;
}

void StepCheck::slot_met(const SavedSlot& slot) {
  if (is_from_outside(program_, slot)) {
    return;
  }
  auto& slots = met_.at(slot.node);
  const SlotFact fact{slot.saved_by, static_cast<int64_t>(slot.tensor.storage().nbytes())};
  slots.insert(std::upper_bound(slots.begin(), slots.end(), fact), fact);
}

std::vector<std::string> differences(const Program& program, const StepFacts& expected, const StepFacts& met) {
  std::vector<std::string> texts;
  for (size_t node = 0; node < met.size() && node < expected.size(); ++node) {
    const auto more = more_than(expected[node], met[node]);
    if (!more.empty()) {
      const auto& info = program.nodes[node];
      const auto place = where(info.source);
      texts.push_back(
          info.name + (place.empty() ? "" : " at " + place) + " saved " + in_words(more) + ", where the plan has " +
          in_words(expected[node]));
    }
  }
  return texts;
}

} // namespace recals
