"""The recomputation of a step within budgets as a mixed-integer linear program, for HiGHS.

Every plan of `passes/plan` without packs is a point of the program, at its cost: what follows from its choices by the
Note [What the executor does with fates] (passes/plan/simulate.h) satisfies each row below. So no plan costs less than
the program's optimum, and where the program has no point, no plan fits. The other way round it need not hold: the
program may let go of what was retained once a reader of it has run, even if another replay will want it.

Binary: whether a storage is dropped, and whether it is retained after each stage, which is the use of a slot that may
run nodes. What runs in a stage, how long nodes are live and what is there while a node runs follow from these and are
bounded on the side that costs; they need not be integer. Memory has a row for each device and each node of the forward,
each node that a stage may run, and each event of the backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

Step = dict[str, Any]
"""As `planner_cases` prints it (test/oracle/planner_cases.cpp)."""


class Linear:
    """A constant and multiples of variables."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: float = 0, terms: dict[int, float] | None = None) -> None:
        self.constant = constant
        self.terms = terms or {}

    def add(self, other: Linear | float | None, factor: float = 1) -> Linear:
        """Changes this sum and returns it. None counts as 0."""
        if isinstance(other, Linear):
            self.constant += factor * other.constant
            for variable, value in other.terms.items():
                self.terms[variable] = self.terms.get(variable, 0) + factor * value
        elif other is not None:
            self.constant += factor * other
        return self

    def __add__(self, other: Linear | float | None) -> Linear:
        return Linear(self.constant, dict(self.terms)).add(other)

    def __sub__(self, other: Linear | float | None) -> Linear:
        return Linear(self.constant, dict(self.terms)).add(other, -1)

    def most(self) -> float:
        """With variables in [0, 1]."""
        return self.constant + sum(value for value in self.terms.values() if value > 0)


@dataclass
class Solution:
    seconds: float
    dropped: list[int]
    """Storages."""
    cache_from: list[int]
    """`Choice::cache_from` of each of them: the node whose backward asks first for what is then retained; -1: never."""


class UnsolvedError(RuntimeError):
    """HiGHS gave up."""


class Program:
    """The least seconds of replays such that each device stays within its budget in bytes."""

    def __init__(self, step: Step, budgets: list[int]) -> None:
        self.storages: list[dict[str, Any]] = step["storages"]
        self.nodes: list[dict[str, Any]] = step["nodes"]
        self.slots: list[dict[str, int]] = step["slots"]
        self.events: list[dict[str, Any]] = step["backward"]
        self.budgets = budgets
        self.integer: list[bool] = []
        """Per variable; all are in [0, 1]."""
        self.rows: list[tuple[float, dict[int, float], float]] = []
        # HiGHS' tolerances are absolute: seconds count in shares of the forward's, bytes in shares of the budget.
        self.unit = sum(node["seconds"] for node in self.nodes) or 1
        self._read_step()
        self._fates()
        self._stages()
        for device in range(len(budgets)):
            self._memory_of_forward(device)
            self._memory_of_backward(device)

    # --- the step -----------------------------------------------------------------------------------------------------

    def _read_step(self) -> None:
        every = range(len(self.storages))
        self.producer: list[int] = [storage["producer"] for storage in self.storages]
        self.readers = [[n for n, node in enumerate(self.nodes) if s in node["reads"]] for s in every]
        self.last_read = [max([self.producer[s], *self.readers[s]]) for s in every]
        self.used_at = {e["index"]: at for at, e in enumerate(self.events) if e["kind"] == "use"}
        self.released_at = {e["index"]: at for at, e in enumerate(self.events) if e["kind"] == "release"}
        self.slots_of = [[i for i, slot in enumerate(self.slots) if slot["storage"] == s] for s in every]
        # What is made of this in the rest of the file.
        for i in range(len(self.slots)):
            assert self.used_at[i] < self.released_at[i], "a slot is used, then released"
        asking = [self.slots[i]["node"] for i in sorted(self.used_at, key=self.used_at.__getitem__)]
        assert asking == sorted(asking, reverse=True), "the backward comes down from the last node"

    def _unreleased(self, s: int, at: int) -> bool:
        """Before event `at`."""
        return any(self.released_at[slot] >= at for slot in self.slots_of[s])

    def _in_use(self, s: int, at: int) -> bool:
        return any(self.used_at[slot] < at <= self.released_at[slot] for slot in self.slots_of[s])

    def _waits(self, s: int, at: int) -> bool:
        return any(self.used_at[slot] >= at for slot in self.slots_of[s])

    # --- variables and rows -------------------------------------------------------------------------------------------

    def _variable(self, integer: bool = False) -> Linear:
        self.integer.append(integer)
        return Linear(0, {len(self.integer) - 1: 1.0})

    def _at_most(self, left: Linear, right: float) -> None:
        # What holds whatever the variables are need not be said.
        if left.most() > right:
            self.rows.append((-highspy.kHighsInf, left.terms, right - left.constant))

    def _at_least(self, variable: Linear, bound: Linear) -> None:
        self._at_most(bound - variable, 0)

    # --- fates --------------------------------------------------------------------------------------------------------

    def _fates(self) -> None:
        self.dropped = [self._variable(integer=True) if storage["free"] else None for storage in self.storages]
        self._live: dict[tuple[int, frozenset[int]], Linear] = {}
        self._held: dict[tuple[int, frozenset[int]], Linear] = {}
        # Per node: storages that may be dropped among what it writes and what is made from that.
        self.following: list[frozenset[int]] = [frozenset()] * len(self.nodes)
        for n in reversed(range(len(self.nodes))):
            written = frozenset(s for s in self.nodes[n]["writes"] if self.dropped[s])
            self.following[n] = written.union(*(self.following[m] for s in written for m in self.readers[s]))

    def _node_lives(self, n: int, at: int) -> Linear | None:
        """Node n is live before event `at`. None: whatever is dropped, it is not."""
        reasons = frozenset(s for s in self.following[n] if self._unreleased(s, at))
        if not reasons:
            return None
        lives = self._live.get((n, reasons))
        if lives is None:
            lives = self._live[n, reasons] = self._variable()
            for s in self.following[n].intersection(self.nodes[n]["writes"]):
                if s in reasons:
                    self._at_least(lives, Linear().add(self.dropped[s]))
                    continue
                for m in self.readers[s]:
                    reader = self._node_lives(m, at)
                    if reader:
                        self._at_least(lives, (reader + self.dropped[s]) - 1)
        return lives

    def _kept(self, s: int, at: int) -> Linear | None:
        """What the forward made of a storage is there before event `at`, after its last reader. None: it cannot be."""
        if self.storages[s]["stays"]:
            return Linear(1)
        if self._unreleased(s, at):
            return Linear(1) - self.dropped[s]
        lives = [reader for reader in (self._node_lives(n, at) for n in self.readers[s]) if reader]
        if not lives:
            return None
        key = (s, frozenset(variable for reader in lives for variable in reader.terms))
        if key not in self._held:
            self._held[key] = self._variable()
            for reader in lives:
                self._at_least(self._held[key], reader - self.dropped[s])
        return self._held[key]

    # --- stages -------------------------------------------------------------------------------------------------------

    def _stages(self) -> None:
        self.stages = [
            at
            for at, event in enumerate(self.events)
            if event["kind"] == "use" and self.dropped[self.slots[event["index"]]["storage"]]
        ]
        self.runs: list[dict[int, Linear]] = []
        """Per stage: the nodes that it may run."""
        self.retained: list[dict[int, Linear]] = [{}]
        """What may be retained before each stage and, in the end, after the last."""
        for at in self.stages:
            target = self.slots[self.events[at]["index"]]["storage"]
            self._run(at, target)
            self._retain(at, target)
        self.cost = Linear()
        for runs in self.runs:
            for n, run in runs.items():
                self.cost.add(run, self.nodes[n]["seconds"] / self.unit)

    def _run(self, at: int, target: int) -> None:
        before = self.retained[-1]
        runs: dict[int, Linear] = {}
        asked = [] if self._in_use(target, at) else [self.producer[target]]
        while asked:
            n = asked.pop()
            if n not in runs:
                runs[n] = self._variable()
                missing = [s for s in self.nodes[n]["reads"] if self.dropped[s] and not self._in_use(s, at)]
                asked += [self.producer[s] for s in missing]
        for n, run in runs.items():
            demand = Linear()
            written = [s for s in self.nodes[n]["writes"] if self.dropped[s]]
            for s in written:
                if self._in_use(s, at):
                    continue
                askers = [runs[m] for m in self.readers[s] if m in runs]
                for asker in [*askers, Linear(1)] if s == target else askers:
                    # It was kept, or is at hand, or its producer runs.
                    self._at_least(run, ((asker + self.dropped[s]) - before.get(s)) - 1)
                    demand.add(asker)
                if len(written) == 1:
                    self._at_most((run + before.get(s)) - self.dropped[s], 0)
            self._at_most(run - demand, 0)
        self.runs.append(runs)

    def _may_be_wanted(self, at: int) -> set[int]:
        """Before event `at`, under some choices."""
        wanted: set[int] = set()
        for n in reversed(range(len(self.nodes))):
            for s in self.nodes[n]["writes"]:
                pending = any(wanted.intersection(self.nodes[m]["writes"]) for m in self.readers[s])
                if self.dropped[s] and (self._waits(s, at) or pending):
                    wanted.add(s)
        return wanted

    def _lasts(self, s: int, at: int) -> bool:
        """In the stage at `at`, what is retained of a storage is wanted until one of its readers has run. Otherwise a
        copy that a slot has been given, and that is now retained too, may be all that a reader was pending for."""
        given = any(self._in_use(w, at) for m in self.readers[s] for w in self.following[m])
        return self._waits(s, at + 1) or not given

    def _retain(self, at: int, target: int) -> None:
        before, runs = self.retained[-1], self.runs[-1]
        after: dict[int, Linear] = {}
        for s in sorted(self._may_be_wanted(at + 1)):
            # The demand makes it, or finds it in a slot's hands.
            passes = Linear()
            readers = Linear()
            for m in self.readers[s]:
                readers.add(runs.get(m))
            if s == target:
                passes.add(1)
            elif self._in_use(s, at):
                passes.add(readers)
            else:
                passes.add(runs.get(self.producer[s]))
            was = before.get(s)
            if was is None and passes.most() == 0:
                continue
            after[s] = self._variable(integer=True)
            self._at_most(after[s] - self.dropped[s], 0)
            self._at_most((after[s] - passes) - was, 0)
            if was and self._waits(s, at + 1):
                self._at_least(after[s], was)
            elif was and self._lasts(s, at):
                self._at_least(after[s], was - readers)
        self.retained.append(after)

    # --- memory -------------------------------------------------------------------------------------------------------

    def _within(self, device: int, memory: Linear) -> None:
        budget = self.budgets[device]
        share = Linear().add(memory, 1 / max(budget, 1))
        self._at_most(share, budget / max(budget, 1))

    def _storages_of(self, device: int) -> list[int]:
        return [s for s, storage in enumerate(self.storages) if storage["device"] == device]

    def _add_generator_states(self, memory: Linear, device: int, last: int, at: int) -> None:
        """Those that nodes up to `last` have stored."""
        for n, node in enumerate(self.nodes[: last + 1]):
            if node["rng_device"] == device and node["rng_bytes"] > 0:
                memory.add(self._node_lives(n, at), node["rng_bytes"])

    def _most_during(self, n: int, device: int) -> int:
        """Above what is there when node n begins."""
        sizes = [self.storages[s]["bytes"] for s in self.nodes[n]["writes"] if self.storages[s]["device"] == device]
        return max(self.nodes[n]["transient"][device], sum(sizes))

    def _memory_of_forward(self, device: int) -> None:
        for n in range(len(self.nodes)):
            memory = Linear(self._most_during(n, device))
            self._add_generator_states(memory, device, n, 0)
            for s in self._storages_of(device):
                if self.producer[s] < n:
                    there = Linear(1) if n <= self.last_read[s] else self._kept(s, 0)
                    memory.add(there, self.storages[s]["bytes"])
            self._within(device, memory)

    def _memory_of_backward(self, device: int) -> None:
        gradients = 0
        stage = 0
        held = self._between(device, stage, 0)
        for at, event in enumerate(self.events):
            if event["kind"] in ("use", "release"):
                if stage < len(self.stages) and self.stages[stage] == at:
                    for n in self.runs[stage]:
                        self._within(device, self._during_replay(device, stage, n) + gradients)
                    stage += 1
                held = self._between(device, stage, at + 1)
                self._within(device, held + gradients)
            elif event["device"] == device:
                peak = event["kind"] == "peak"
                gradients += 0 if peak else event["bytes"]
                self._within(device, held + (gradients + (event["bytes"] if peak else 0)))

    def _between(self, device: int, stage: int, at: int) -> Linear:
        """Before event `at` and the given stage."""
        memory = Linear()
        self._add_generator_states(memory, device, len(self.nodes) - 1, at)
        for s in self._storages_of(device):
            # In a slot's hands it is there, kept or not.
            there = Linear(1) if self._in_use(s, at) else Linear().add(self._kept(s, at))
            if not self._in_use(s, at):
                there.add(self.retained[stage].get(s))
            memory.add(there, self.storages[s]["bytes"])
        return memory

    def _during_replay(self, device: int, stage: int, n: int) -> Linear:
        at = self.stages[stage]
        own_state = self.nodes[n]["rng_bytes"] if self.nodes[n]["rng_device"] == device else 0
        memory = Linear().add(self.runs[stage][n], self._most_during(n, device) + own_state)
        self._add_generator_states(memory, device, len(self.nodes) - 1, at)
        for s in self._storages_of(device):
            there = Linear(1) if self._in_use(s, at) else Linear().add(self._kept(s, at))
            if self.dropped[s] and not self._in_use(s, at):
                there.add(self._at_hand(stage, n, s))
            memory.add(there, self.storages[s]["bytes"])
        return memory

    def _at_hand(self, stage: int, n: int, s: int) -> Linear | None:
        """What must be there of a dropped storage when node n begins in a stage, if it runs, and else when it would."""
        at, runs = self.stages[stage], self.runs[stage]
        before, after = self.retained[stage].get(s), self.retained[stage + 1].get(s)
        producer = self.producer[s]
        if n > self.last_read[s]:
            return after
        if n <= producer:
            if before is None or self._lasts(s, at):
                return before
            return self._greatest([(before + after) - 1]) if after else None
        bounds = [after] if after else []
        made = Linear().add(before)
        if producer in runs:
            # A node that writes several may run for another one; then this is no copy to count unless it is dropped.
            several = len(self.nodes[producer]["writes"]) > 1
            made.add(runs[producer]).add((self.dropped[s] or Linear()) - 1 if several else 0)
        ran = Linear()
        for m in self.readers[s]:
            if m < n:
                ran.add(runs.get(m))
            elif m == n:
                bounds.append(runs[m] - self._kept(s, at))
            elif m in runs:
                bounds.append((made + runs[m]) - 1)
        if before and self._lasts(s, at):
            bounds.append(before - ran)
        return self._greatest(bounds)

    def _greatest(self, bounds: list[Linear]) -> Linear | None:
        """At least each of them, and 0."""
        bounds = [bound for bound in bounds if bound.most() > 0]
        if not bounds:
            return None
        greatest = self._variable()
        for bound in bounds:
            self._at_least(greatest, bound)
        return greatest

    # --- the solver ---------------------------------------------------------------------------------------------------

    def restrict_to(self, dropped: list[int], runs: list[int]) -> None:
        """To plans that drop just these storages and run each node so many times."""
        for s, fate in enumerate(self.dropped):
            if fate:
                value = float(s in dropped)
                self.rows.append((value, fate.terms, value))
        for n, times in enumerate(runs):
            sum_ = Linear()
            for stage in self.runs:
                sum_.add(stage.get(n))
            assert sum_.terms or times == 0, f"node {n} runs where the program has no run of it"
            if sum_.terms:
                self.rows.append((times, sum_.terms, times))

    def solve(self) -> Solution | None:
        """An optimum, proved; None: proved that there is no point. Raises UnsolvedError if neither can be proved."""
        solver = highspy.Highs()
        for option, value in {
            "output_flag": False,
            "threads": 1,
            "random_seed": 0,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": 1e-9,
            "mip_feasibility_tolerance": 1e-9,
            "primal_feasibility_tolerance": 1e-9,
        }.items():
            assert solver.setOptionValue(option, value) == highspy.HighsStatus.kOk, option
        solver.passModel(self._model())
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise UnsolvedError(solver.modelStatusToString(status))
        values = solver.getSolution().col_value

        def is_one(variable: Linear | None) -> bool:
            return variable is not None and all(values[v] > 0.5 for v in variable.terms)

        dropped = [s for s, fate in enumerate(self.dropped) if is_one(fate)]
        cache_from = []
        for s in dropped:
            asking = [
                self.slots[self.events[at]["index"]]["node"]
                for at, after in zip(self.stages, self.retained[1:], strict=True)
                if is_one(after.get(s))
            ]
            cache_from.append(asking[0] if asking else -1)
        return Solution(solver.getInfo().objective_function_value * self.unit, dropped, cache_from)

    def _model(self) -> highspy.HighsLp:
        model = highspy.HighsLp()
        count = len(self.integer)
        model.num_col_ = count
        model.num_row_ = len(self.rows)
        cost = np.zeros(count)
        for variable, value in self.cost.terms.items():
            cost[variable] = value
        model.col_cost_ = cost
        model.col_lower_ = np.zeros(count)
        model.col_upper_ = np.ones(count)
        kind = highspy.HighsVarType
        model.integrality_ = [kind.kInteger if integer else kind.kContinuous for integer in self.integer]
        model.row_lower_ = np.array([low for low, _, _ in self.rows])
        model.row_upper_ = np.array([high for _, _, high in self.rows])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.cumsum([0, *(len(terms) for _, terms, _ in self.rows)])
        model.a_matrix_.index_ = np.array([v for _, terms, _ in self.rows for v in terms], dtype=np.int32)
        model.a_matrix_.value_ = np.array([value for _, terms, _ in self.rows for value in terms.values()])
        return model
