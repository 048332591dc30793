/// Each rule of Note [What the executor does with fates] (passes/plan/simulate.h), on a step that is small enough to
/// add up by hand.

#include <gtest/gtest.h>

#include "passes/plan/planner.h"
#include "step_builder.h"

namespace recals::plan::test {
namespace {

constexpr Fate K = Fate::Keep;
constexpr Fate R = Fate::Recompute;

std::vector<int64_t> live_of(const Simulation& simulation, int device = 0) {
  std::vector<int64_t> live;
  for (const CurvePoint& point : simulation.curve) {
    live.push_back(point.live[device]);
  }
  return live;
}

std::vector<int64_t> most_of(const Simulation& simulation, int device = 0) {
  std::vector<int64_t> most;
  for (const CurvePoint& point : simulation.curve) {
    most.push_back(point.most[device]);
  }
  return most;
}

using Bytes = std::vector<int64_t>;

/// a(8) -> b(16) -> c(4) -> loss(1). b and c save what they read, so a and b have one slot each.
struct Chain : StepBuilder {
  int a = node("a", {}, {8}, 2);
  int b = node("b", {out(a)}, {16}, 3);
  int c = node("c", {out(b)}, {4}, 5);
  int loss = node("loss", {out(c)}, {1}, 7);
  int slot_a = save(b, out(a));
  int slot_b = save(c, out(b));
  Chain() {
    use(slot_b);
    change(10);
    release(slot_b);
    use(slot_a);
    change(-4);
    release(slot_a);
  }
};

TEST(Simulate, KeepsWhatASlotHolds) {
  Chain step;
  const Simulation s = simulate(step.graph, {K, K, K, K}, true);
  // a and b stay for their slots; c goes after loss has read it; loss has no reader and no slot, so it goes at once.
  //                              a   b   c   loss use +10 rel use -4  rel
  EXPECT_EQ(live_of(s), (Bytes{8, 24, 28, 24, 24, 34, 18, 18, 14, 6}));
  // During loss: 28 + 1.
  EXPECT_EQ(most_of(s), (Bytes{8, 24, 28, 29, 24, 34, 34, 18, 18, 14}));
  EXPECT_EQ(s.held[0], 24);
  EXPECT_EQ(s.peak[0].bytes, 34);
  EXPECT_TRUE(s.peak[0].in_backward);
  EXPECT_EQ(s.peak[0].index, 1);
  EXPECT_EQ(s.peak[0].replayed_node, -1);
  EXPECT_TRUE(s.replayed.empty());
  EXPECT_EQ(s.recompute_seconds, 0);
  EXPECT_EQ(s.recomputed_bytes, 0);
}

TEST(Simulate, DroppedStorageGoesAtItsLastReadAndComesBackAtItsUse) {
  Chain step;
  const Simulation s = simulate(step.graph, {K, R, K, K}, true);
  // b goes after c has read it: 8 + 16 + 4 - 16 = 12. Its use runs node b again, which reads a, that is kept.
  //                              a  b   c   loss use +10 rel use -4  rel
  EXPECT_EQ(live_of(s), (Bytes{8, 24, 12, 8, 24, 34, 18, 18, 14, 6}));
  EXPECT_EQ(most_of(s), (Bytes{8, 24, 28, 13, 24, 34, 34, 18, 18, 14}));
  EXPECT_EQ(s.held[0], 8);
  EXPECT_EQ(s.replayed, std::vector<int>{1});
  EXPECT_EQ(s.recompute_seconds, 3);
  EXPECT_EQ(s.recomputed_bytes, 16);
}

TEST(Simulate, ReplayRunsWhatItNeedsInForwardOrderAndKeepsItForItsOwnSlot) {
  Chain step;
  const Simulation s = simulate(step.graph, {R, R, K, K}, true);
  // The use of b's slot needs b, b needs a. a is cached for its own slot, until that is released at the end.
  //                              a  b   c  loss use +10 rel use -4  rel
  EXPECT_EQ(live_of(s), (Bytes{8, 16, 4, 0, 24, 34, 18, 18, 14, 6}));
  EXPECT_EQ(s.held[0], 0);
  EXPECT_EQ(s.replayed, (std::vector<int>{0, 1}));
  EXPECT_EQ(s.recompute_seconds, 5);
  EXPECT_EQ(s.recomputed_bytes, 24);
}

TEST(Simulate, NegativeTwin_AFateWithoutASlotOrReplayMakesNoDifference) {
  Chain step;
  const Simulation keep = simulate(step.graph, {K, K, K, K}, true);
  const Simulation drop = simulate(step.graph, {K, K, R, R}, true); // c and loss: nobody saves them
  EXPECT_EQ(live_of(keep), live_of(drop));
  EXPECT_TRUE(drop.replayed.empty());
}

/// x(10), no slot -> y(20) -> z(30), saved by itself.
struct Slotless : StepBuilder {
  int x = node("x", {}, {10}, 1);
  int y = node("y", {out(x)}, {20}, 2);
  int z = node("z", {out(y)}, {30}, 4);
  int slot_z = save(z, out(z));
  Slotless() {
    use(slot_z);
    release(slot_z);
  }
};

TEST(Simulate, KeptStoragesThatAReplayReadsAreHeld) {
  Slotless step;
  // z runs again from y. y is kept, so it stays although it has no slot, and x is not needed.
  const Simulation s = simulate(step.graph, {R, K, R}, true);
  //                              x   y   z   use rel
  EXPECT_EQ(live_of(s), (Bytes{10, 20, 20, 50, 0}));
  EXPECT_EQ(most_of(s), (Bytes{10, 30, 50, 50, 50}));
  EXPECT_EQ(s.replayed, std::vector<int>{2});
}

TEST(Simulate, SlotlessStoragesAreRecomputedInTurnAndDieInTheReplay) {
  Slotless step;
  const Simulation s = simulate(step.graph, {R, R, R}, true);
  // The replay: x 10, x + y 30, then x goes; y + z 50, then y goes.
  EXPECT_EQ(live_of(s), (Bytes{10, 20, 0, 30, 0}));
  EXPECT_EQ(most_of(s), (Bytes{10, 30, 50, 50, 30}));
  EXPECT_EQ(s.replayed, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(s.recompute_seconds, 7);
  // The same 50 were there in the forward, and the first moment counts.
  EXPECT_FALSE(s.peak[0].in_backward);
  EXPECT_EQ(s.peak[0].index, 2);
}

TEST(Simulate, PeakNamesTheNodeOfTheReplay) {
  Slotless step;
  step.graph.backward.insert(step.graph.backward.begin(), {Event::Kind::Change, 0, 0, 5, -1});
  const Simulation s = simulate(step.graph, {R, R, R});
  EXPECT_EQ(s.peak[0].bytes, 55);
  EXPECT_TRUE(s.peak[0].in_backward);
  EXPECT_EQ(s.peak[0].index, 1);
  EXPECT_EQ(s.peak[0].replayed_node, 2);
}

TEST(Simulate, TransientCountsInTheForwardAndInTheReplay) {
  Slotless step;
  step.graph.nodes[2].transient[0] = 100; // 30 written, 70 of workspace
  const Simulation s = simulate(step.graph, {R, K, R}, true);
  EXPECT_EQ(most_of(s), (Bytes{10, 30, 120, 120, 50}));
}

TEST(Simulate, PeakEventIsForAMoment) {
  StepBuilder step;
  const int a = step.node("a", {}, {8});
  step.save(a, step.out(a));
  step.peak(5);
  step.change(2);
  const Simulation s = simulate(step.graph, {K}, true);
  EXPECT_EQ(live_of(s), (Bytes{8, 8, 10}));
  EXPECT_EQ(most_of(s), (Bytes{8, 13, 10}));
}

TEST(Simulate, NodeOfSeveralWrites) {
  // dropout(x) -> y(16), mask(4). Both are saved; y is dropped, the mask is kept.
  StepBuilder step;
  const int x = step.node("x", {}, {16}, 1);
  const int dropout = step.node("dropout", {step.out(x)}, {16, 4}, 2);
  const int slot_x = step.save(dropout, step.out(x));
  const int slot_mask = step.save(dropout, step.out(dropout, 1));
  const int slot_y = step.save(dropout, step.out(dropout, 0));
  step.use(slot_y);
  step.release(slot_y);
  step.use(slot_mask);
  step.release(slot_mask);
  step.release(slot_x);
  const Simulation s = simulate(step.graph, {K, R, K}, true);
  // The replay writes the mask a second time, and that copy goes at once: 20 + 20, then 36.
  //                              x   dropout use rel use rel rel
  EXPECT_EQ(live_of(s), (Bytes{16, 20, 36, 20, 20, 16, 0}));
  EXPECT_EQ(most_of(s), (Bytes{16, 36, 40, 36, 20, 20, 16}));
  EXPECT_EQ(s.recomputed_bytes, 20);

  // Both dropped: one replay brings both back, each until its own release.
  const Simulation both = simulate(step.graph, {K, R, R}, true);
  EXPECT_EQ(live_of(both), (Bytes{16, 16, 36, 20, 20, 16, 0}));
  EXPECT_EQ(both.recompute_seconds, 2);
}

TEST(Simulate, SharedSlotsAreReleasedByTheLast) {
  StepBuilder step;
  const int a = step.node("a", {}, {8}, 1);
  const int b = step.node("b", {step.out(a)}, {1}, 1);
  const int c = step.node("c", {step.out(a)}, {1}, 1);
  const int of_b = step.save(b, step.out(a));
  const int of_c = step.save(c, step.out(a));
  step.use(of_c);
  step.release(of_c);
  step.use(of_b);
  step.release(of_b);
  // Kept: until both are released.
  EXPECT_EQ(live_of(simulate(step.graph, {K, K, K}, true)), (Bytes{8, 8, 8, 8, 8, 8, 0}));
  // Dropped: the first use brings it back for both; it is not run twice.
  const Simulation s = simulate(step.graph, {R, K, K}, true);
  EXPECT_EQ(live_of(s), (Bytes{8, 8, 0, 8, 8, 8, 0}));
  EXPECT_EQ(s.recompute_seconds, 1);
}

TEST(Simulate, TwoNodesHoldUntilTheLaterDies) {
  // p and q both run again from x, independently: no recomputed storage links them.
  StepBuilder step;
  const int x = step.node("x", {}, {100}, 1);
  const int p = step.node("p", {step.out(x)}, {7}, 1);
  const int q = step.node("q", {step.out(x)}, {9}, 1);
  const int slot_p = step.save(p, step.out(p));
  const int slot_q = step.save(q, step.out(q));
  step.use(slot_q);
  step.release(slot_q);
  step.use(slot_p);
  step.release(slot_p);
  const Simulation s = simulate(step.graph, {K, R, R}, true);
  //                              x    p    q    use  rel  use  rel
  EXPECT_EQ(live_of(s), (Bytes{100, 100, 100, 109, 100, 107, 0}));
  EXPECT_EQ(regions_of(step.graph, {K, R, R}).size(), 2u);

  // With x recomputed they are one component. The use of q's slot runs x and q, and x is cached for p.
  const Simulation one = simulate(step.graph, {R, R, R}, true);
  EXPECT_EQ(live_of(one), (Bytes{100, 100, 0, 109, 100, 7, 0}));
  EXPECT_EQ(one.recompute_seconds, 3);
  EXPECT_EQ(regions_of(step.graph, {R, R, R}).size(), 1u);
}

TEST(Simulate, WhatALiveNodeReadsIsHeldEvenAfterItsLastRun) {
  // z is replayed at once, but it lets go of y only when z's second slot is released.
  Slotless step;
  step.graph.backward.clear();
  const int second = step.save(2, step.out(step.z));
  step.use(step.slot_z);
  step.release(step.slot_z);
  step.change(1);
  step.release(second);
  const Simulation s = simulate(step.graph, {K, K, R}, true);
  //                              x   y   z   use rel +1  rel
  EXPECT_EQ(live_of(s), (Bytes{10, 20, 20, 50, 50, 51, 1}));
}

TEST(Simulate, KeptSlotAndHoldEndAtTheLater) {
  // y has a slot of its own, that is released before and after z dies.
  for (const bool slot_first : {true, false}) {
    Slotless step;
    step.graph.backward.clear();
    const int slot_y = step.save(step.z, step.out(step.y));
    step.use(step.slot_z);
    step.release(slot_first ? slot_y : step.slot_z);
    step.change(1);
    step.release(slot_first ? step.slot_z : slot_y);
    const Simulation s = simulate(step.graph, {K, K, R}, true);
    // use: y 20 + z 30. First release: y's slot frees nothing, because z holds it; z's frees z.
    const int64_t between = slot_first ? 50 : 20;
    EXPECT_EQ(live_of(s), (Bytes{10, 20, 20, 50, between, between + 1, 1}));
  }
}

TEST(Simulate, GeneratorStatesAreStoredUntilTheirNodeDies) {
  Slotless step;
  step.graph.nodes[step.z].rng_bytes = 3;
  // Kept: a random node that does not run again stores nothing.
  EXPECT_EQ(live_of(simulate(step.graph, {R, R, K}, true)), (Bytes{10, 20, 30, 30, 0}));
  // Dropped: 3 before the node runs (20 + 3 + 30), 3 more in the replay while the outer state is put aside.
  const Simulation s = simulate(step.graph, {R, K, R}, true);
  EXPECT_EQ(live_of(s), (Bytes{10, 20, 23, 53, 0}));
  EXPECT_EQ(most_of(s), (Bytes{10, 30, 53, 56, 53}));
  EXPECT_EQ(s.peak[0].bytes, 56);
  EXPECT_EQ(s.peak[0].replayed_node, 2);
}

TEST(Simulate, GeneratorStatesCountOnTheDeviceThatStoresThem) {
  StepBuilder step({"cuda:0", "cpu"});
  const int x = step.node("x", {}, {10});
  const int y = step.node("dropout", {step.out(x)}, {20});
  step.graph.nodes[y].rng_bytes = 3;
  step.graph.nodes[y].rng_device = 1;
  const int slot = step.save(y, step.out(y));
  step.use(slot);
  step.release(slot);
  const Simulation s = simulate(step.graph, {K, R}, true);
  EXPECT_EQ(live_of(s, 0), (Bytes{10, 10, 30, 0}));
  EXPECT_EQ(live_of(s, 1), (Bytes{0, 3, 3, 0}));
  EXPECT_EQ(most_of(s, 1), (Bytes{0, 3, 6, 3}));
  step.graph.nodes[y].rng_device = -1;
  EXPECT_EQ(simulate(step.graph, {K, R}).peak[1].bytes, 0);
}

TEST(Simulate, OutputsAndPinsStay) {
  for (const bool output : {true, false}) {
    Chain step;
    step.graph.storages[step.out(step.loss)].output = output;
    step.graph.storages[step.out(step.loss)].pinned = !output;
    const Simulation s = simulate(step.graph, {K, K, K, K}, true);
    EXPECT_EQ(s.curve.back().live[0], 6 + 1); // 6 of gradients, and the loss
  }
}

TEST(Simulate, NotRecomputableIsKeptWhateverTheFateSays) {
  Chain step;
  step.graph.storages[step.out(step.b)].recomputable = false;
  const Simulation s = simulate(step.graph, {K, R, K, K}, true);
  EXPECT_EQ(live_of(s), live_of(simulate(step.graph, {K, K, K, K}, true)));
  EXPECT_TRUE(s.replayed.empty());
}

TEST(Simulate, SlotThatIsReleasedUnusedIsNeverReplayed) {
  StepBuilder step;
  const int a = step.node("a", {}, {8}, 1);
  const int b = step.node("b", {step.out(a)}, {4}, 1);
  const int slot_a = step.save(b, step.out(a));
  const int slot_b = step.save(b, step.out(b));
  step.use(slot_b);
  step.release(slot_a);
  step.release(slot_b);
  // a is in N by its own slot and because b reads it; the use of b's slot runs both; a's slot is all that keeps it.
  EXPECT_EQ(live_of(simulate(step.graph, {R, R}, true)), (Bytes{8, 0, 12, 4, 0}));
  // Nobody uses anything: N is planned, but nothing runs.
  step.graph.backward.erase(step.graph.backward.begin());
  const Simulation s = simulate(step.graph, {R, R}, true);
  EXPECT_EQ(live_of(s), (Bytes{8, 0, 0, 0}));
  EXPECT_EQ(s.replayed, (std::vector<int>{0, 1}));
  EXPECT_EQ(s.recompute_seconds, 0);
}

TEST(Simulate, WhatNobodyWillAskForAnyMoreTakesItsInputsAlong) {
  // t, without a slot, is read by p and q. p is replayed and t is retained for q; q's slot is released unused.
  StepBuilder step;
  const int t = step.node("t", {}, {8}, 1);
  const int p = step.node("p", {step.out(t)}, {4}, 1);
  const int q = step.node("q", {step.out(t)}, {2}, 1);
  const int slot_p = step.save(p, step.out(p));
  const int slot_q = step.save(q, step.out(q));
  step.use(slot_p);
  step.release(slot_p);
  step.change(1);
  step.release(slot_q);
  EXPECT_EQ(live_of(simulate(step.graph, {R, R, R}, true)), (Bytes{8, 12 - 4, 0, 12, 8, 9, 1}));
}

TEST(Simulate, KeptStorageIsHeldOnlyForWhatIsMadeFromIt) {
  // b reads the dropped a and the kept k: one replay runs both. But a's own slot, released last, needs no k.
  StepBuilder step;
  const int a = step.node("a", {}, {8}, 1);
  const int k = step.node("k", {}, {100}, 1);
  const int b = step.node("b", {step.out(a), step.out(k)}, {4}, 1);
  const int slot_b = step.save(b, step.out(b));
  const int slot_a = step.save(b, step.out(a));
  step.use(slot_b);
  step.release(slot_b);
  step.use(slot_a);
  step.release(slot_a);
  //                                                            a  k    b    use  rel use rel
  EXPECT_EQ(live_of(simulate(step.graph, {R, K, R}, true)), (Bytes{8, 108, 100, 112, 8, 8, 0}));
}

Choice from(int node) {
  Choice choice = R;
  choice.cache_from = node;
  return choice;
}

/// a(1) -> b(2) -> c(4) -> d(8) -> end(0), one second each; each node saves what it reads.
struct NestedChain : StepBuilder {
  NestedChain() {
    int last = -1;
    for (const int64_t bytes : {1, 2, 4, 8, 0}) {
      const int n = node("op", last < 0 ? std::vector<int>{} : std::vector<int>{out(last)}, {bytes});
      if (last >= 0) {
        save(n, out(last));
      }
      last = n;
    }
    for (int slot = 3; slot >= 0; --slot) {
      use(slot);
      release(slot);
    }
  }
};

TEST(Simulate, NodesRunOnceWhereEverythingIsRetained) {
  NestedChain step;
  const Simulation s = simulate(step.graph, {R, R, R, R, K}, true);
  // Backward: the use of d's slot runs all four.      use d      rel d use c rel c ...
  EXPECT_EQ(live_of(s), (Bytes{1, 2, 4, 8, 0, /**/ 15, 7, 7, 3, 3, 1, 1, 0}));
  EXPECT_EQ(s.recompute_seconds, 4);
  EXPECT_EQ(s.runs, (std::vector<int>{1, 1, 1, 1}));
}

TEST(Simulate, WhatIsNotRetainedDiesInTheReplayAndRunsAgain) {
  NestedChain step;
  // Never retained: each use runs everything up to it, and holds what it asked for until the release.
  const Simulation s = simulate(step.graph, {from(-1), from(-1), from(-1), from(-1), K}, true);
  EXPECT_EQ(live_of(s), (Bytes{1, 2, 4, 8, 0, /**/ 8, 0, 4, 0, 2, 0, 1, 0}));
  // The replay for d: a, a + b, b + c, c + d.
  EXPECT_EQ(most_of(s), (Bytes{1, 3, 6, 12, 8, /**/ 12, 8, 6, 4, 3, 2, 1, 1}));
  EXPECT_EQ(s.recompute_seconds, 4 + 3 + 2 + 1);
  EXPECT_EQ(s.runs, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(s.recomputed_bytes, 4 * 1 + 3 * 2 + 2 * 4 + 1 * 8);
}

TEST(Simulate, StorageIsRetainedFromTheNodeThatItsChoiceNames) {
  NestedChain step;
  // b is retained by every replay; a only once the backward is at node 2 (which saved b), so that it runs twice.
  const Simulation s = simulate(step.graph, {from(2), R, from(-1), from(-1), K}, true);
  // use d (node 4): a, b stay? a goes, b stays: 2 + 8. use c (node 3): from b. use b (node 2): at hand, nothing runs.
  // use a (node 1): runs.
  EXPECT_EQ(live_of(s), (Bytes{1, 2, 4, 8, 0, /**/ 10, 2, 6, 2, 2, 0, 1, 0}));
  EXPECT_EQ(s.runs, (std::vector<int>{2, 1, 2, 1}));
}

TEST(Simulate, RandomNodeRunsAgainFromTheSameState) {
  NestedChain step;
  step.graph.nodes[1].rng_bytes = 16;
  const Simulation s = simulate(step.graph, {from(-1), from(-1), from(-1), from(-1), K}, true);
  // The state is stored until no slot is left that b is needed for: b's own, the third to be released.
  EXPECT_EQ(live_of(s), (Bytes{1, 18, 20, 24, 16, /**/ 24, 16, 20, 16, 18, 0, 1, 0}));
  EXPECT_EQ(s.runs, (std::vector<int>{4, 3, 2, 1}));
}

/// x(10), read by y(20); y is saved by y itself and by z(1). y can be packed into 3 (5 on the way), or, for its slots
/// only, into 1.
struct Packable : StepBuilder {
  int x = node("x", {}, {10}, 1);
  int y = node("y", {out(x)}, {20}, 2);
  int z = node("z", {out(y)}, {1}, 4);
  int slot_y = save(y, out(y));
  int slot_z = save(z, out(y));
  Packable() {
    graph.storages[out(y)].packs = {{"lossless", 3, true, 0.5, 0.25, 5, 22}, {"sign", 1, false, 0.5, 0.25, 1, 20}};
    use(slot_z);
    release(slot_z);
    change(7);
    use(slot_y);
    release(slot_y);
  }
  Choice packed(int option, int cache_from = Choice::kAlways) const {
    Choice choice = Fate::Pack;
    choice.pack = option;
    choice.cache_from = cache_from;
    return choice;
  }
};

TEST(Simulate, PackedFormStaysAndIsUnpackedAtTheUse) {
  Packable step;
  const Simulation s = simulate(step.graph, {K, step.packed(0), K}, true);
  // During y: x + y 30, then 5 of packing; x goes, 20 + 3. z reads y, which goes. The use of z's slot brings y back, for
  // y's own, too; the form stays until both are released.
  //                              x   y   z  use rel +7  use rel
  EXPECT_EQ(live_of(s), (Bytes{10, 23, 3, 23, 23, 30, 30, 7}));
  EXPECT_EQ(most_of(s), (Bytes{10, 35, 24, 25, 23, 30, 30, 30}));
  EXPECT_EQ(s.pack_seconds, 0.75);
  EXPECT_EQ(s.extra_seconds(), 0.75);
  EXPECT_TRUE(s.replayed.empty());
}

TEST(Simulate, UnpackedAgainWhereItIsNotRetained) {
  Packable step;
  const Simulation s = simulate(step.graph, {K, step.packed(0, 1), K}, true);
  // z's slot is asked for by node 2: not retained. y's own is node 1.
  EXPECT_EQ(live_of(s), (Bytes{10, 23, 3, 23, 3, 10, 30, 7}));
  EXPECT_EQ(s.pack_seconds, 1);
}

TEST(Simulate, PackWithLossServesTheSlotsAlone) {
  Packable step;
  const Simulation s = simulate(step.graph, {K, step.packed(1), K}, true);
  EXPECT_EQ(live_of(s), (Bytes{10, 21, 1, 21, 1, 8, 28, 7}));
  EXPECT_EQ(s.pack_seconds, 1);

  // A replay that reads y runs its producer, from the held x; packed without loss it reads the form.
  step.graph.backward.insert(step.graph.backward.begin(), {Event::Kind::Use, 2, 0, 0, -1});
  step.save(step.z, step.out(step.z));
  const Simulation with_loss = simulate(step.graph, {K, step.packed(1), R}, true);
  EXPECT_EQ(with_loss.replayed, (std::vector<int>{1, 2}));
  EXPECT_EQ(with_loss.recompute_seconds, 6);
  EXPECT_EQ(live_of(with_loss)[3], 10 + 1 + 1); // x, the form, z
  const Simulation without = simulate(step.graph, {K, step.packed(0), R}, true);
  EXPECT_EQ(without.replayed, std::vector<int>{2});
  EXPECT_EQ(live_of(without)[3], 20 + 3 + 1); // y retained for its slots, the form, z
}

TEST(Simulate, PackThatIsNotPossibleCountsAsKeep) {
  Packable step;
  const Bytes plain = live_of(simulate(step.graph, {K, K, K}, true));
  EXPECT_EQ(live_of(simulate(step.graph, {K, step.packed(2), K}, true)), plain); // no such option
  step.graph.storages[step.out(step.y)].recomputable = false;
  EXPECT_EQ(live_of(simulate(step.graph, {K, step.packed(1), K}, true)), plain); // with loss
  EXPECT_NE(live_of(simulate(step.graph, {K, step.packed(0), K}, true)), plain);
  step.graph.storages[step.out(step.y)].pinned = true;
  EXPECT_EQ(
      live_of(simulate(step.graph, {K, step.packed(0), K}, true)), live_of(simulate(step.graph, {K, K, K}, true)));
}

TEST(Simulate, RecipeIsTakenWhereWhatItNeedsWasNotDropped) {
  // dropout(x) -> y(16), mask(4), three seconds, or one from the mask.
  StepBuilder step;
  const int x = step.node("x", {}, {16}, 1);
  const int dropout = step.node("dropout", {step.out(x)}, {16, 4}, 3);
  step.graph.nodes[dropout].rng_bytes = 5;
  step.graph.nodes[dropout].recipe = {{step.out(dropout, 1)}, 1, {18}};
  step.graph.storages[step.out(dropout, 1)].packs = {{"bits", 1, true, 0.5, 0.25, 1, 4}};
  const int slot_y = step.save(dropout, step.out(dropout));
  const int slot_mask = step.save(dropout, step.out(dropout, 1));
  step.use(slot_y);
  step.release(slot_y);
  step.use(slot_mask);
  step.release(slot_mask);
  // The mask is kept: no generator state; the replay makes y alone (18 for a moment), and not a second mask.
  const Simulation kept = simulate(step.graph, {K, R, K}, true);
  //                                  x   dropout use rel use rel
  EXPECT_EQ(live_of(kept), (Bytes{16, 20, 36, 4, 4, 0}));
  EXPECT_EQ(most_of(kept), (Bytes{16, 36, 38, 36, 4, 4}));
  EXPECT_EQ(kept.recompute_seconds, 1);
  EXPECT_EQ(kept.recomputed_bytes, 16);
  EXPECT_EQ(kept.by_recipe, std::vector<bool>{true});
  // Packed: it is unpacked for the replay, and stays for its slot.
  Choice bits = Fate::Pack;
  const Simulation packed = simulate(step.graph, {K, R, bits}, true);
  EXPECT_EQ(live_of(packed), (Bytes{16, 17, 37, 5, 5, 0}));
  EXPECT_EQ(packed.extra_seconds(), 1.75);
  // Dropped: drawn again.
  const Simulation dropped = simulate(step.graph, {K, R, R}, true);
  EXPECT_EQ(live_of(dropped), (Bytes{16, 21, 41, 25, 25, 0}));
  EXPECT_EQ(dropped.recompute_seconds, 3);
  EXPECT_EQ(dropped.by_recipe, std::vector<bool>{false});
}

TEST(Simulate, DevicesAreApart) {
  StepBuilder step({"cuda:0", "cuda:1"});
  const int a = step.node("a", {}, {8}, 1, 0);
  const int b = step.node("to", {step.out(a)}, {8}, 1, 1);
  const int c = step.node("c", {step.out(b)}, {4}, 1, 1);
  const int slot_b = step.save(c, step.out(b));
  const int slot_a = step.save(b, step.out(a));
  step.use(slot_b);
  step.change(3, 1);
  step.release(slot_b);
  step.use(slot_a);
  step.release(slot_a);
  const Simulation s = simulate(step.graph, {K, R, K}, true);
  EXPECT_EQ(live_of(s, 0), (Bytes{8, 8, 8, 8, 8, 8, 8, 0}));
  //                                 a  to c  use +3 rel use rel
  EXPECT_EQ(live_of(s, 1), (Bytes{0, 8, 0, 8, 11, 3, 3, 3}));
  EXPECT_EQ(s.held, (Bytes{8, 0}));
  EXPECT_EQ(s.peak[0].bytes, 8);
  EXPECT_EQ(s.peak[1].bytes, 12); // during c: to + c
}

TEST(Simulate, TakesTheEmptyStep) {
  StepGraph graph;
  graph.devices = {"cpu"};
  const Simulation s = simulate(graph, {}, true);
  EXPECT_EQ(s.peak[0].bytes, 0);
  EXPECT_EQ(s.peak[0].index, -1);
  EXPECT_TRUE(s.curve.empty());
}

TEST(Regions, AreTheSmallestDisjointIntervals) {
  // Two chains, interleaved: a0 b0 a1 b1 a2 b2, and one node behind.
  StepBuilder step;
  int a = step.node("a", {}, {1});
  int b = step.node("b", {}, {1});
  for (int i = 0; i < 2; ++i) {
    a = step.node("a", {step.out(a)}, {1});
    b = step.node("b", {step.out(b)}, {1});
  }
  const int behind = step.node("behind", {step.out(b)}, {1});
  step.save(a, step.out(a));
  step.save(b, step.out(b));
  step.save(behind, step.out(behind));
  const auto intervals = [&](const std::vector<Choice>& choices) {
    std::vector<std::pair<int, int>> result;
    for (const Region& region : regions_of(step.graph, choices)) {
      result.emplace_back(region.first, region.last);
    }
    return result;
  };
  using Intervals = std::vector<std::pair<int, int>>;
  //                  a0 b0 a1 b1 a2 b2 behind
  EXPECT_EQ(intervals({K, K, K, K, K, K, K}), Intervals{});
  EXPECT_EQ(intervals({K, K, K, K, R, K, R}), (Intervals{{4, 4}, {6, 6}}));
  // a1 and a2 are one component; what lies between belongs to the region.
  EXPECT_EQ(intervals({K, K, R, K, R, K, K}), (Intervals{{2, 4}}));
  // Both chains: the intervals 0..4 and 1..5 overlap, so they are one.
  EXPECT_EQ(intervals({R, R, R, R, R, R, K}), (Intervals{{0, 5}}));
  // behind reads b2: with b2 kept it is a region of its own, else it joins the component of b2.
  EXPECT_EQ(intervals({R, K, R, K, R, K, R}), (Intervals{{0, 4}, {6, 6}}));
  EXPECT_EQ(intervals({R, R, R, R, R, R, R}), (Intervals{{0, 6}}));
}

} // namespace
} // namespace recals::plan::test
