#include "passes/plan/improve.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace recals::plan {
namespace {

int draw(std::mt19937_64& random, int count) {
  return static_cast<int>(random() % static_cast<uint64_t>(count));
}

bool is_dropped(const Choice& choice) {
  return choice.fate != Fate::Keep;
}

} // namespace

State state_of(IncrementalSimulator& step) {
  return {step.choices(), step.cost(), step.violation()};
}

bool better(const State& a, const State& b) {
  if (a.fits() != b.fits()) {
    return a.fits();
  }
  return a.fits() ? a.cost < b.cost : a.violation < b.violation;
}

/// By how much `change` lowers the violation; the step is as it was afterwards.
double Improver::violation_change(const Change& change, int64_t& cost_change) {
  const double violation = step_.violation();
  const int64_t cost = step_.cost();
  changes_.assign(1, change);
  step_.change(changes_);
  const double lower = violation - step_.violation();
  cost_change = step_.cost() - cost;
  step_.undo();
  return lower;
}

void Improver::drop_until_it_fits(const std::vector<uint8_t>& frozen, int64_t work) {
  struct Candidate {
    double gain;
    Change change;
    bool operator<(const Candidate& other) const {
      return gain != other.gain ? gain < other.gain : change.storage > other.change.storage;
    }
  };
  if (step_.violation() == 0) {
    return;
  }
  const int64_t until = step_.work() + work;
  // The best that can become of a storage, by what it saves per second.
  const auto best_of = [&](int s) {
    Candidate best{0, {s, step_.choice(s)}};
    for (const Choice& choice : options_.of[s]) {
      if (choice.fate == step_.choice(s).fate && (choice.fate != Fate::Pack || choice.pack == step_.choice(s).pack)) {
        continue;
      }
      int64_t cost = 0;
      const double lower = violation_change({s, choice}, cost);
      // What costs nothing must still have a finite gain.
      const double gain = lower / std::max(static_cast<double>(cost), 1e-9 * kForwardTicks);
      if (lower > 0 && gain > best.gain) {
        best = {gain, {s, choice}};
      }
    }
    return best;
  };
  std::priority_queue<Candidate> queue;
  std::vector<int> candidates;
  for (const int s : options_.storages) {
    const bool saved = step_.index().slots[s] > 0 || step_.choice(s).fate != Fate::Keep;
    if (saved && (frozen.empty() || !frozen[s])) {
      candidates.push_back(s);
    }
  }
  // In large steps some storages of a kind are asked, and the best of these answers for all, until it is asked below.
  constexpr size_t kAll = 1000;
  constexpr int kAsked = 6;
  std::vector<int> of_kind(options_.kinds, 0);
  std::vector<int> seen(options_.kinds, 0);
  std::vector<double> gain_of_kind(options_.kinds, 0);
  for (const int s : candidates) {
    ++of_kind[options_.kind[s]];
  }
  std::vector<int> rest;
  for (const int s : candidates) {
    const int kind = options_.kind[s];
    const int every = candidates.size() <= kAll ? 1 : std::max(1, of_kind[kind] / kAsked);
    if (seen[kind]++ % every != 0) {
      rest.push_back(s);
    } else if (step_.work() < until) {
      const Candidate candidate = best_of(s);
      if (candidate.gain > 0) {
        queue.push(candidate);
        gain_of_kind[kind] = std::max(gain_of_kind[kind], candidate.gain);
      }
    }
  }
  for (const int s : rest) {
    queue.push({gain_of_kind[options_.kind[s]], {s, step_.choice(s)}});
  }
  // Gains change while others are taken: what is on top is asked again before it is.
  while (step_.violation() > 0 && !queue.empty() && step_.work() < until) {
    const Candidate old = queue.top();
    queue.pop();
    const Candidate top = best_of(old.change.storage);
    if (top.gain <= 0) {
      continue;
    }
    if (!queue.empty() && top.gain < 0.95 * queue.top().gain) {
      queue.push(top);
      continue;
    }
    changes_.assign(1, top.change);
    step_.change(changes_);
  }
}

void Improver::keep_what_fits(int64_t work) {
  if (step_.violation() > 0) {
    return;
  }
  const int64_t until = step_.work() + work;
  std::vector<int> order;
  for (const int s : options_.storages) {
    if (is_dropped(step_.choice(s))) {
      order.push_back(s);
    }
  }
  const StepIndex& index = step_.index();
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return step_.ticks_of(index.producer[a]) > step_.ticks_of(index.producer[b]);
  });
  for (const int s : order) {
    if (step_.work() > until) {
      break;
    }
    // The best of: another fate; the same, always cached.
    const Choice now = step_.choice(s);
    Choice best = now;
    int64_t best_cost = step_.cost();
    const auto ask = [&](const Choice& choice) {
      if (choice == now) {
        return;
      }
      changes_.assign(1, {s, choice});
      step_.change(changes_);
      if (step_.cost() < best_cost && step_.violation() == 0) {
        best_cost = step_.cost();
        best = choice;
      }
      step_.undo();
    };
    for (const Choice& choice : options_.of[s]) {
      ask(choice);
    }
    if (best != now) {
      changes_.assign(1, {s, best});
      step_.change(changes_);
    }
  }
}

/// A node that asks, behind the one that makes the storage: near ones as often as far ones. -1: none.
int Improver::some_asking_node(int storage, std::mt19937_64& random) const {
  const std::vector<int>& asking = options_.asking;
  const auto behind = std::lower_bound(asking.begin(), asking.end(), step_.index().producer[storage]);
  const int rest = static_cast<int>(asking.end() - behind);
  int reach = 1;
  while (reach < rest && draw(random, 4) != 0) {
    reach *= 2;
  }
  const int k = draw(random, std::min(reach, rest) + 1);
  return k == 0 ? -1 : *(behind + (k - 1));
}

/// Another fate or form than now, if there is one.
Choice Improver::some_choice(int storage, std::mt19937_64& random) const {
  const std::vector<Choice>& of = options_.of[storage];
  const Choice& now = step_.choice(storage);
  const auto is_now = [&](const Choice& c) {
    return c.fate == now.fate && (c.fate != Fate::Pack || c.pack == now.pack);
  };
  const int others = static_cast<int>(of.size()) - 1;
  if (others <= 0) {
    return of.front();
  }
  int k = draw(random, others);
  for (const Choice& choice : of) {
    if (!is_now(choice) && k-- == 0) {
      return choice;
    }
  }
  return of.front();
}

/// When on something is cached: one storage, or a run of neighbours to the same.
void Improver::pick_cache_from(std::mt19937_64& random) {
  const int count = static_cast<int>(options_.storages.size());
  const int a = draw(random, count);
  const int end = std::min(count, a + (draw(random, 2) == 0 ? 1 : 2 + draw(random, 6)));
  const int s = options_.storages[a];
  int from = Choice::kAlways;
  switch (draw(random, 4)) {
    case 0:
      break;
    case 1: {
      // As another one nearby.
      const int b = std::clamp(a - 6 + draw(random, 13), 0, count - 1);
      from = step_.choice(options_.storages[b]).cache_from;
      break;
    }
    default:
      from = some_asking_node(s, random);
      break;
  }
  for (int k = a; k < end; ++k) {
    Choice choice = step_.choice(options_.storages[k]);
    if (is_dropped(choice) && choice.cache_from != from) {
      choice.cache_from = from;
      changes_.push_back({options_.storages[k], choice});
    }
  }
}

/// When on several are cached that so far begin at the same time.
void Improver::pick_cache_from_of_many(std::mt19937_64& random) {
  const int s = options_.storages[draw(random, static_cast<int>(options_.storages.size()))];
  const Choice one = step_.choice(s);
  if (!is_dropped(one)) {
    return;
  }
  const int from = draw(random, 4) == 0 ? Choice::kAlways : some_asking_node(s, random);
  for (const int other : options_.storages) {
    Choice choice = step_.choice(other);
    const bool is_one = is_dropped(choice) && choice.cache_from == one.cache_from && choice.cache_from != from;
    if (is_one && (other == s || draw(random, 4) != 0)) {
      choice.cache_from = from;
      changes_.push_back({other, choice});
    }
  }
}

/// One storage; a swap with one nearby that has another fate (a checkpoint moves); a run of neighbours to one fate; or
/// when on something is cached.
void Improver::pick(std::mt19937_64& random) {
  changes_.clear();
  const int count = static_cast<int>(options_.storages.size());
  // Where nothing is nested, nesting pays rarely; where there are few choices, there is time for everything.
  if (is_small_ ? draw(random, 2) == 0 : draw(random, nested_ ? 5 : 24) == 0) {
    if (is_small_ && draw(random, 5) == 0) {
      pick_cache_from_of_many(random);
    } else {
      pick_cache_from(random);
    }
    return;
  }
  const int kind = draw(random, 10);
  const int a = draw(random, count);
  const int s = options_.storages[a];
  const auto put = [&](int storage, Choice choice, int cache_from) {
    if (is_dropped(choice)) {
      choice.cache_from = cache_from;
    }
    if (choice != step_.choice(storage)) {
      changes_.push_back({storage, choice});
    }
  };
  const auto with_fate = [&](int storage, Fate fate) -> const Choice* {
    const std::vector<Choice>& of = options_.of[storage];
    const auto it = std::find_if(of.begin(), of.end(), [&](const Choice& c) { return c.fate == fate; });
    return it == of.end() ? nullptr : &*it;
  };
  if (kind >= 8) {
    const Choice target = options_.of[s][draw(random, static_cast<int>(options_.of[s].size()))];
    const int end = std::min(count, a + 2 + draw(random, 5));
    for (int k = a; k < end; ++k) {
      const int other = options_.storages[k];
      if (const Choice* choice = with_fate(other, target.fate)) {
        put(other, *choice, step_.choice(other).cache_from);
      }
    }
    return;
  }
  const Choice now = step_.choice(s);
  if (kind >= 5) {
    constexpr int kReach = 6;
    for (int k = 0; k < 8; ++k) {
      const int other = options_.storages[std::clamp(a - kReach + draw(random, 2 * kReach + 1), 0, count - 1)];
      const Choice& of_other = step_.choice(other);
      if (of_other.fate == now.fate) {
        continue;
      }
      const Choice* mine = with_fate(s, of_other.fate);
      const Choice* theirs = with_fate(other, now.fate);
      if (mine && theirs) {
        put(s, *mine, of_other.cache_from);
        put(other, *theirs, now.cache_from);
        return;
      }
    }
  }
  int from = is_dropped(now) ? now.cache_from : Choice::kAlways;
  if (nested_ && draw(random, 3) == 0) {
    from = some_asking_node(s, random);
  }
  put(s, some_choice(s, random), from);
}

State Improver::anneal(const Annealing& how) {
  const auto counts = [&] { return !how.counts || how.counts(); };
  State best = state_of(step_);
  nested_ =
      how.heat > kCold || is_small_ || std::any_of(best.choices.begin(), best.choices.end(), [](const Choice& choice) {
        return is_dropped(choice) && choice.cache_from != Choice::kAlways;
      });
  if (options_.storages.empty() || (how.until_it_fits && best.fits())) {
    return best;
  }
  std::mt19937_64 random(how.seed);
  const int64_t work = step_.work();
  double heat = how.heat;
  double price = 1;
  int not_fitting = 0;
  int64_t cost = best.cost;
  double violation = best.violation;
  bool found = counts();
  for (int64_t i = 0; i < how.effort.tries && step_.work() - work < how.effort.work; ++i) {
    pick(random);
    if (changes_.empty()) {
      continue;
    }
    step_.change(changes_);
    if (visit_) {
      visit_();
    }
    const double new_violation = step_.violation();
    const double more = static_cast<double>(step_.cost() - cost) / kForwardTicks + price * (new_violation - violation);
    const double luck = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
    if (more <= 0 || more < -heat * std::log(luck)) {
      cost = step_.cost();
      violation = new_violation;
      const bool new_best =
          violation == 0 ? !best.fits() || cost < best.cost : !best.fits() && violation < best.violation;
      if ((new_best || !found) && counts()) {
        found = true;
        best = state_of(step_);
        if (how.until_it_fits && best.fits()) {
          break;
        }
      }
    } else {
      step_.undo();
    }
    not_fitting += violation > 0 ? 1 : 0;
    if (i % 50 == 49) {
      const double done = std::max(
          static_cast<double>(i) / static_cast<double>(how.effort.tries),
          static_cast<double>(step_.work() - work) / static_cast<double>(how.effort.work));
      heat = how.heat * std::pow(1e-3, done);
      if (not_fitting > 30) {
        price *= 1.1;
      } else if (not_fitting < 20) {
        price /= 1.1;
      }
      not_fitting = 0;
    }
  }
  return best;
}

} // namespace recals::plan
