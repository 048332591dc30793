#include "passes/plan/starts.h"

#include <algorithm>

namespace recals::plan {
namespace {

constexpr int kMostStages = 96;

} // namespace

Starts::Starts(const StepIndex& index, const Options& options, const std::vector<int>& devices)
    : index_(index), options_(options), cuts_(index), devices_(devices) {
  for (const int device : devices) {
    chains_.emplace_back(index, options, cuts_, device, kMostStages);
  }
}

std::vector<Choice> Starts::plain() const {
  std::vector<Choice> choices = options_.plain;
  for (const int s : options_.storages) {
    const Policy policy = index_.policy[s];
    if (index_.slots[s] == 0 && options_.allows(s, Fate::Recompute) && policy != Policy::PreferSave) {
      choices[s] = Fate::Recompute;
    }
  }
  return choices;
}

std::vector<Starts::Raw> Starts::raw(IncrementalSimulator& step, const std::vector<int64_t>& limits, int64_t until)
    const {
  // From coarse to fine, so that a large step, for which there is no time to try all, has some of each.
  static const std::vector<std::vector<int>> kNestings{
      {},     {8},       {32},      {2},    {16},   {64},      {4},          {128},     {3},     {6},
      {12},   {24},      {48},      {96},   {1, 2}, {1, 4},    {1, 8},       {2, 2},    {4, 2},  {8, 2},
      {2, 4}, {1, 2, 2}, {1, 3, 3}, {4, 4}, {8, 4}, {1, 4, 4}, {1, 2, 2, 2}, {2, 2, 2}, {16, 2}, {1, 16}};
  std::vector<Raw> raw;
  const auto add = [&](std::vector<Choice> choices, bool flat) {
    const auto same = [&](const Raw& other) { return other.state.choices == choices; };
    if (choices.empty() || std::any_of(raw.begin(), raw.end(), same)) {
      return;
    }
    step.set_choices(choices);
    std::vector<uint8_t> frozen;
    for (int s = 0; s < index_.storages && flat; ++s) {
      frozen.push_back(choices[s].fate == Fate::Keep && options_.of[s].size() > 1);
    }
    raw.push_back({state_of(step), std::move(frozen)});
  };
  for (size_t i = 0; i < devices_.size(); ++i) {
    for (const int percent : {100, 95, 90, 80, 105, 115, 130}) {
      const double bytes = static_cast<double>(limits[devices_[i]]) * percent / 100;
      add(chains_[i].plan(static_cast<int64_t>(bytes)), false);
    }
  }
  for (const std::vector<int>& segments : kNestings) {
    if (step.work() > until && !raw.empty()) {
      break;
    }
    add(nested(index_, options_, cuts_, {segments, 0.4}), segments.size() < 2);
  }
  return raw;
}

std::vector<State> Starts::best(
    IncrementalSimulator& step,
    Improver& improver,
    const std::vector<int64_t>& limits,
    int64_t work) const {
  const int64_t until = step.work() + work;
  std::vector<Raw> all = raw(step, limits, until - work / 2);
  std::vector<State> starts;
  // Between checkpoints greedily: what is kept between them goes one by one, until it fits.
  for (const Raw& from : all) {
    if (from.frozen.empty() || step.work() > until) {
      continue;
    }
    std::vector<Choice> choices = plain();
    for (int s = 0; s < index_.storages; ++s) {
      if (from.frozen[s]) {
        choices[s] = Fate::Keep;
      }
    }
    step.set_choices(choices);
    improver.drop_until_it_fits(from.frozen, work / 8);
    improver.keep_what_fits(work / 8);
    starts.push_back(state_of(step));
  }
  std::stable_sort(all.begin(), all.end(), [](const Raw& a, const Raw& b) { return better(a.state, b.state); });
  constexpr size_t kRepaired = 6;
  for (size_t i = 0; i < std::min(all.size(), kRepaired) && step.work() < until; ++i) {
    step.set_choices(all[i].state.choices);
    improver.drop_until_it_fits({}, work / 16);
    improver.keep_what_fits(work / 16);
    starts.push_back(state_of(step));
  }
  if (starts.empty()) {
    starts.push_back(all.front().state);
  }
  std::stable_sort(starts.begin(), starts.end(), better);
  return starts;
}

} // namespace recals::plan
