"""Every fault at every operation of every scenario, and what then does not hold."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from speedtronic.errors import CheckpointError
from tests.robustness.failpoints import (
    KILLED_AFTER,
    KILLED_BEFORE,
    SHORT_KILLED,
    Failpoints,
    Killed,
)
from tests.robustness.invariants import MakeStore, Oracle, Place, violations
from tests.robustness.model import Disk
from tests.robustness.scenarios import Scenario
from tests.robustness.stage import Stage, real_store, state_at

KILLS = (KILLED_BEFORE, KILLED_AFTER, SHORT_KILLED)
MANY = 40  # names, more than crashes in a row leave before a save comes through and cleans up


@dataclass
class Tally:
    """How often each kind of fault happened, and how often something then did not hold.

    Attributes:
        examples: of violations, the first few of each kind, with where they were found.
    """

    fired: Counter[str] = field(default_factory=Counter)
    violated: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, faults: Iterable[str], where: str, found: list[str]) -> None:
        for fault in faults:
            self.fired[fault] += 1
            if found:
                self.violated[fault] += 1
                self.examples.setdefault(fault, []).append(f"{where}: {'; '.join(found)}")
                del self.examples[fault][3:]

    def add(self, other: "Tally") -> None:
        self.fired += other.fired
        self.violated += other.violated
        for fault, examples in other.examples.items():
            self.examples[fault] = (self.examples.get(fault, []) + examples)[:3]


class Sweep:
    """One scenario over and over.

    Args:
        scenario: which.
        make_store: of what kind of store; the real one, or one that is broken on purpose.
        place: where the files of each run are, empty at first.
    """

    def __init__(
        self,
        scenario: Scenario,
        make_store: MakeStore = real_store,
        place: Callable[[], Place] = Disk,
    ) -> None:
        self._scenario = scenario
        self._make_store = make_store
        self._place = place

    def operation_faults(
        self,
        tally: Tally,
        faults: Iterable[str] | None = None,
        *,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        """Let each fault happen at operation `first`, then `stride` later, until none is left."""
        start = self.stage(self._place(), Oracle())
        self._scenario.before(start)
        for fault in faults or start.disk.faults:
            number = first
            while self._fault_at(number, fault, start, tally):
                number += stride

    def power_losses(self, tally: Tally, bound: int, rng: random.Random) -> None:
        """Cut the power between any two operations; at most `bound` outcomes of each."""
        seen: set[tuple[str, int]] = set()
        armed = False

        def look() -> None:
            if not armed:
                return
            oracle = stage.oracle.copy()
            for kinds, disk in stage.disk.power_losses(bound, rng):
                key = (str(oracle), hash(tuple(disk.image().items())))
                if key not in seen:
                    seen.add(key)
                    where = f"{self._scenario.name}, before operation {len(storage.operations)}"
                    tally.note(loss_names(kinds), where, self.check(disk, oracle))

        storage = Failpoints(disk := Disk(), look)
        stage = self.stage(disk, Oracle(), storage)
        self._scenario.before(stage)
        armed = True
        self._scenario.act(stage)
        look()

    def _fault_at(self, number: int, fault: str, start: Stage, tally: Tally) -> bool:
        """Whether there was such an operation."""
        disk = start.disk.killed()
        storage = disk.failpoints()
        # Every other process that is refused a save repeats it; the rest give up at once.
        stage = self.stage(disk, start.oracle.copy(), storage, try_again=number % 2 == 1)
        storage.arm(number, fault)
        found = acted(stage, self._scenario.act) + stage.broken
        fired = storage.fired
        starts = [disk.killed()]
        if fault not in KILLS:  # or it would be a power loss and nothing else
            starts += [cut for _, cut in disk.power_losses(1, random.Random(number))]
        for start_again in {hash(tuple(d.image().items())): d for d in starts}.values():
            found += self.check(start_again, stage.oracle)
        if fired:
            where = f"{self._scenario.name}, operation {number}"
            tally.note([f"{fault} at {fired}"], where, found)
        return bool(fired)

    def stage(
        self,
        disk: Place,
        oracle: Oracle,
        storage: Failpoints | None = None,
        *,
        try_again: bool = False,
    ) -> Stage:
        return Stage(
            disk,
            oracle,
            storage or disk.failpoints(),
            keep_last=self._scenario.keep_last,
            make_store=self._make_store,
            background=self._scenario.background,
            try_again=try_again,
        )

    def check(self, disk: Place, oracle: Oracle) -> list[str]:
        return violations(
            disk,
            oracle,
            keep_last=self._scenario.keep_last,
            make_store=self._make_store,
            state_at=state_at,
        )


def acted(stage: Stage, act: Callable[[Stage], None]) -> list[str]:
    """Act until the end, the process's death, or an error of the kind that a caller expects."""
    try:
        act(stage)
    except (Killed, CheckpointError):
        pass
    except Exception as error:
        return [f"raised {type(error).__name__}: {error}"]
    return []


def crash_rounds(
    tally: Tally, num_rounds: int, rng: random.Random, *, keep_last: int, num_cuts: int = 4
) -> None:
    """One run that is killed or loses its power again and again, on one disk.

    At every power loss `num_cuts` outcomes are looked at, and one of them is gone on from.
    """
    disk, oracle = Disk(), Oracle()
    for number in range(num_rounds):
        background = number % 2 == 1
        sweep = Sweep(Scenario("rounds", _goes_on, keep_last=keep_last, background=background))
        storage = Failpoints(disk)
        storage.arm(rng.randrange(80), rng.choice(KILLS))
        stage = sweep.stage(disk, oracle, storage)
        found = acted(stage, _goes_on)
        found += stage.broken
        if rng.random() < 0.3:
            disk = disk.killed()
            found += sweep.check(disk.killed(), oracle)
        else:
            cuts = list(disk.power_losses(num_cuts, rng))
            for kinds, cut in cuts:
                broken = sweep.check(cut.killed(), oracle)
                tally.note(loss_names(kinds), f"round {number}", broken)
            disk = rng.choice([cut for _, cut in cuts])
        if len(names := disk.image()) > MANY:
            found.append(f"junk grows: {sorted(names)}")
        tally.note(["crash and repair, again and again"], f"round {number}", found)


def loss_names(kinds: Iterable[str]) -> list[str]:
    """What a power loss that made these losses is counted as."""
    return ["power loss", *(f"power loss, {kind}" for kind in kinds or ["nothing pending"])]


def _goes_on(stage: Stage) -> None:
    process = stage.process()
    try:
        process.resume()
        step = stage.oracle.acknowledged[0] if stage.oracle.acknowledged else 0
        process.save(step + 2, step + 4, step + 6)
        process.end()
    finally:
        process.close()
