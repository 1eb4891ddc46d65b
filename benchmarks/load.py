"""What a verified load costs: `load_vs_torch`, over `torch.load` of the same file, at most 1.3.

384 MB, the page cache warm. Each load is made in a process of its own, forked for it: that is where
loads are made, and memory that an earlier load left behind would favour one or the other by chance.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from figures import AT_MOST, show_figure
from states import build_state

from speedtronic.checkpoint import CheckpointStore, open_storage
from speedtronic.checkpoint.candidates import candidates

NUM_ROUNDS = 15


def seconds_in_a_fork(action: Callable[[], object]) -> float:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        started = time.perf_counter()
        kept = action()
        os.write(writer, str(time.perf_counter() - started).encode())
        del kept
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        return float(answer.read())


def main() -> bool:
    with tempfile.TemporaryDirectory(prefix="load-benchmark-", dir=".") as name:
        folder = Path(name)
        storage = open_storage(str(folder / "store"))
        state = build_state(folder / "run", d_model=512, n_layer=10).state_dict()
        pointer = CheckpointStore(storage, keep_last=1).save({**state, "config": {}})
        del state
        path = folder / "store" / pointer.file

        def ours() -> object:
            return next(candidates(storage)).load()

        def plain() -> object:
            return torch.load(path, map_location="cpu", weights_only=True)

        path.read_bytes()  # warms the page cache, which saving passes by
        ratios = [seconds_in_a_fork(ours) / seconds_in_a_fork(plain) for _ in range(NUM_ROUNDS)]
    return show_figure("load_vs_torch", ratios, holds=AT_MOST, bar=1.3)


if __name__ == "__main__":
    sys.exit(not main())
