"""Files that change behind the store's back: flipped bits, lost ends, pages of zeros."""

import random
from collections.abc import Iterable

from speedtronic.checkpoint import layout, survey
from speedtronic.errors import LegacyStoreError
from tests.robustness.invariants import MakeStore, Oracle, violations
from tests.robustness.model import Disk
from tests.robustness.scenarios import Scenario, runs
from tests.robustness.stage import real_store, saved_at, state_at
from tests.robustness.sweeps import Sweep, Tally

PAGE = 4096
FLIP, TRUNCATION, ZEROS = "bit flip", "truncation", "zeroed page"


def rotten(content: bytes, kind: str, rng: random.Random) -> bytes:
    """`content` with one thing wrong at a random place."""
    place = rng.randrange(len(content))
    if kind == TRUNCATION:
        return content[:place]
    if kind == ZEROS:
        start = place - place % PAGE
        end = min(start + PAGE, len(content))
        return content[:start] + bytes(end - start) + content[end:]
    flipped = bytearray(content)
    flipped[place] ^= 1 << rng.randrange(8)
    return bytes(flipped)


class Rot:
    """A store with checkpoints of steps 2, 4 and 6, of which files rot.

    Args:
        make_store: of what kind of store.
    """

    def __init__(self, make_store: MakeStore = real_store) -> None:
        self._make_store = make_store
        self._good = _saved(2, 4, 6)
        self._alone = {name: data for name, data in _saved(2).items() if name.endswith(".pt")}

    def of_one_file(
        self, tally: Tally, count: int, rng: random.Random, kinds: Iterable[str] = (FLIP,)
    ) -> None:
        """Spoil one of the newest checkpoint's files, or now and then an older one's."""
        pointer, payload, manifest = layout.POINTER, layout.payload_name(6), layout.manifest_name(6)
        for number in range(count):
            for kind in kinds:
                newest = [payload, payload, manifest, pointer]
                name = rng.choice(newest) if number % 8 else rng.choice(sorted(self._good))
                content = rotten(self._good[name], kind, rng)
                if content == self._good[name]:
                    continue  # a page that was zero
                disk = Disk.of(self._good | {name: content})
                expected = saved_at(4 if name in (payload, manifest) else 6)
                oracle = Oracle(expected, damaged={content})
                found = [] if number % 5 else self._survey(disk, expected[0])
                found += violations(
                    disk,
                    oracle,
                    keep_last=3,
                    make_store=self._make_store,
                    state_at=state_at,
                )
                what = "pointer" if name == pointer else "payload"
                what = "manifest" if name.startswith("step") and name.endswith("json") else what
                tally.note([f"{kind} in a {what}"], name, found)

    def of_a_payload_alone(self, tally: Tally, count: int, rng: random.Random) -> None:
        """Without a manifest nothing says what its bytes should be; torch must not fall over it."""
        [(name, good)] = self._alone.items()
        for _ in range(count):
            disk = Disk.of({name: rotten(good, FLIP, rng)})
            found = []
            try:
                if self._make_store(disk, keep_last=3).select() is not None:
                    found.append("it was selected")
            except LegacyStoreError:
                pass
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
            tally.note([f"{FLIP} in a payload without manifest"], name, found)

    def _survey(self, disk: Disk, expected: int) -> list[str]:
        try:
            selected = survey(disk).selected
        except Exception as error:
            return [f"survey raised {type(error).__name__}: {error}"]
        return [] if selected == expected else [f"survey selects {selected}"]


def _saved(*steps: int) -> dict[str, bytes]:
    sweep = Sweep(Scenario("rot", runs(*steps)))
    stage = sweep.stage(Disk(), Oracle())
    runs(*steps)(stage)
    return stage.disk.image()
