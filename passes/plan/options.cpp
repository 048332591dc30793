#include "passes/plan/options.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace recals::plan {

Options::Options(const StepIndex& index) : of(index.storages), plain(index.storages, Fate::Keep) {
  for (int s = 0; s < index.storages; ++s) {
    const Policy policy = index.policy[s];
    const bool matters = index.slots[s] > 0 || index.readers.size(s) > 0 || index.recipe_readers.size(s) > 0;
    const bool can_recompute = matters && index.recomputable[s] && !index.stays[s];
    std::vector<Choice>& choices = of[s];
    if (policy == Policy::MustRecompute && can_recompute) {
      choices.push_back(Fate::Recompute);
    } else {
      choices.push_back(Fate::Keep);
      if (policy != Policy::MustSave) {
        if (can_recompute) {
          choices.push_back(Fate::Recompute);
        }
        for (size_t k = 0; k < index.packs[s].size(); ++k) {
          Choice pack = Fate::Pack;
          pack.pack = static_cast<int>(k);
          if (index.possible(s, pack).fate == Fate::Pack) {
            choices.push_back(pack);
          }
        }
      }
    }
    const bool recompute = policy == Policy::MustRecompute || policy == Policy::PreferRecompute;
    if (recompute && can_recompute) {
      plain[s] = Fate::Recompute;
    }
    // What must be recomputed may still choose from when on it is cached.
    if (choices.size() > 1 || choices.front().fate != Fate::Keep) {
      storages.push_back(s);
    }
  }
  for (size_t slot = 0; slot < index.slot_node.size(); ++slot) {
    const std::vector<Choice>& choices = of[index.slot_storage[slot]];
    if (choices.size() > 1 || choices.front().fate != Fate::Keep) {
      asking.push_back(index.slot_node[slot]);
    }
  }
  std::sort(asking.begin(), asking.end());
  asking.erase(std::unique(asking.begin(), asking.end()), asking.end());

  std::map<std::tuple<int64_t, int, double, int, int>, int> kind_of;
  for (int s = 0; s < index.storages; ++s) {
    const int n = index.producer[s];
    const auto place = std::find(index.writes.begin(n), index.writes.end(n), s) - index.writes.begin(n);
    kind.push_back(
        kind_of.try_emplace({index.bytes[s], index.slots[s], index.seconds[n], index.device[s], place}, kinds)
            .first->second);
    kinds = static_cast<int>(kind_of.size());
  }
}

bool Options::allows(int storage, Fate fate) const {
  return std::any_of(of[storage].begin(), of[storage].end(), [&](const Choice& c) { return c.fate == fate; });
}

std::vector<Choice> Options::every(const StepIndex& index, int storage) const {
  std::vector<Choice> choices;
  for (Choice choice : of[storage]) {
    if (choice.fate == Fate::Keep) {
      choices.push_back(choice);
      continue;
    }
    const auto behind = std::lower_bound(asking.begin(), asking.end(), index.producer[storage]);
    for (auto node = behind; node != asking.end(); ++node) {
      choice.cache_from = *node;
      choices.push_back(choice);
    }
    choice.cache_from = -1;
    choices.push_back(choice);
    if (behind == asking.end()) {
      continue; // nothing behind it asks, so "always" is "never"
    }
    choices[choices.size() - 2].cache_from = Choice::kAlways; // what the last node asks for is all
  }
  return choices;
}

double Options::sets(const StepIndex& index) const {
  double sets = 1;
  for (const int s : storages) {
    sets *= static_cast<double>(every(index, s).size());
  }
  return sets;
}

} // namespace recals::plan
