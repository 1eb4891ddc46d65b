"""What saving costs a run: a durable save every 10 steps, on a model of 25 million parameters.

Blocks of ten steps take turns: without a save, with a background save in the middle of the block,
and with `torch.save` and fsync there. Every block ends with its save durable.

- `overhead`: wall time with background saves over wall time without; at most 1.05.
- `excess_vs_torch_save`: what the first adds, over what `torch.save` and fsync add; at most 0.8.

The first is the median of a ratio within a round. For the second the medians of the two differences
are divided: either difference is small against the noise of a single block.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from figures import AT_MOST, show_figure
from states import build_components_of

from speedtronic.checkpoint import CheckpointStore, open_storage
from speedtronic.runtime.components import Components
from speedtronic.runtime.saver import Saver
from speedtronic.training.trainer import Trainer

NUM_ROUNDS = 7
SAVE_EVERY = 10
BATCH_SIZE = 8


class Ways:
    """Three trainers of one state, which save in different ways."""

    def __init__(self, folder: Path) -> None:
        self._parts = build_components_of(
            folder / "run", d_model=512, n_layer=8, batch_size=BATCH_SIZE
        )
        self._file = folder / "torch.pt"
        store = CheckpointStore(open_storage(str(folder / "store")), keep_last=1)
        self.saver = Saver(
            store,
            about={},
            check_finite=self._parts.check_finite,
            pointer=None,
            metrics=None,
            emit=lambda *_: None,
            background=True,
        )
        self.trainers = {
            "without": self._trainer(self._parts),
            "ours": self._trainer(
                self._parts, save=self.saver.save, wait_for_saves=self.saver.wait
            ),
            "torch": self._trainer(self._parts, save=self._torch_save),
        }
        self.trainers["without"].fit(SAVE_EVERY // 2)  # so that saves fall inside the blocks

    def seconds_of_block(self, way: str) -> float:
        started = time.perf_counter()
        self.trainers[way].fit(self._parts.state.step + SAVE_EVERY)
        return time.perf_counter() - started

    def _trainer(self, components: Components, **saving: Any) -> Trainer:
        return Trainer(
            components.state,
            precision=components.precision,
            save_every=SAVE_EVERY,
            log_every=100,
            **saving,
        )

    def _torch_save(self, state: dict[str, Any]) -> None:
        with self._file.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())


def main() -> bool:
    seconds: dict[str, list[float]] = {"without": [], "ours": [], "torch": []}
    with tempfile.TemporaryDirectory(prefix="overhead-benchmark-", dir=".") as folder:
        ways = Ways(Path(folder))
        for way in seconds:
            ways.seconds_of_block(way)
        for number in range(NUM_ROUNDS):
            order = list(seconds)
            for way in order[number % 3 :] + order[: number % 3]:
                seconds[way].append(ways.seconds_of_block(way))
        ways.saver.close()
    pairs = list(zip(seconds["ours"], seconds["without"], strict=True))
    ours = statistics.median(a - b for a, b in pairs)
    rivals = zip(seconds["torch"], seconds["without"], strict=True)
    torch_save = statistics.median(a - b for a, b in rivals)
    record = {"seconds": statistics.median(seconds["without"]), "ours": ours, "torch": torch_save}
    print(json.dumps({"name": "per_block_s", **record}), file=sys.stderr)
    return all(
        [
            show_figure("overhead", [a / b for a, b in pairs], holds=AT_MOST, bar=1.05),
            show_figure("excess_vs_torch_save", [ours / torch_save], holds=AT_MOST, bar=0.8),
        ]
    )


if __name__ == "__main__":
    sys.exit(not main())
