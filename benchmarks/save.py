"""What a save costs: 384 MB of state, everything warm, the ways taking turns in one run.

- `stall_vs_memcpy`: how long the caller is held by a background save, over copying the same tensors
  into memory that is there already; at most 1.3.
- `torch_save_vs_stall`: how long `torch.save` and fsync hold the caller, over that; at least 8.
- `durable_vs_raw`: from the call to the commit (payload, manifest and pointer, all fsynced), over
  writing the same bytes to a file and fsync; at most 1.4.

Each figure is the median over the rounds of a ratio taken within a round.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from figures import AT_LEAST, AT_MOST, show_figure
from states import build_state

from speedtronic.checkpoint import CheckpointStore, Pointer, open_storage
from speedtronic.checkpoint.writer import CheckpointWriter

NUM_ROUNDS = 11
NUM_WARM_UPS = 2


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


class Ways:
    """The same state saved in each way, over and over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.train_state = build_state(folder / "run", d_model=512, n_layer=10)
        self.state = self.train_state.state_dict()
        self.tensors = [x for x in _tensors(self.state) if x.numel()]
        self.warm = [x.clone() for x in self.tensors]
        # The same bytes: some disks and hosts store zeros, or what repeats itself, for less.
        apart = {x.untyped_storage().data_ptr(): x for x in self.tensors}.values()
        self.raw = b"".join(x.reshape(-1).view(torch.uint8).numpy().tobytes() for x in apart)
        self.store = CheckpointStore(open_storage(str(folder / "store")), keep_last=1)
        self.writer = CheckpointWriter(self._commit, background=True)
        self.step = 0

    def copy(self) -> None:
        for target, source in zip(self.warm, self.tensors, strict=True):
            target.copy_(source)

    def torch_save(self) -> None:
        self._fresh("torch.pt", lambda file: torch.save(self.state, file))

    def write_raw(self) -> None:
        self._fresh("raw", lambda file: file.write(self.raw))

    def save(self) -> tuple[float, float]:
        """Seconds of the stall, and until it is durable."""
        self.step += 1
        self.writer.save({**self.state, "step": self.step})
        (saved,) = self.writer.wait()
        return saved.stall_s, saved.durable_s

    def _commit(self, state: dict[str, Any]) -> tuple[Pointer, int]:
        return self.store.save(state), self.store.last_size_bytes

    def _fresh(self, name: str, write: Callable[[Any], object]) -> None:
        with (self.folder / name).open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return [x for item in items for x in _tensors(item)]
    return []


def main() -> bool:
    stall, torch_save, durable = [], [], []
    with tempfile.TemporaryDirectory(prefix="save-benchmark-", dir=".") as folder:
        ways = Ways(Path(folder))
        for number in range(NUM_WARM_UPS + NUM_ROUNDS):
            copy_s = seconds(ways.copy)
            held_s, durable_s = ways.save()
            torch_save_s = seconds(ways.torch_save)
            raw_s = seconds(ways.write_raw)
            (Path(folder) / "torch.pt").unlink()
            (Path(folder) / "raw").unlink()
            if number >= NUM_WARM_UPS:
                stall.append(held_s / copy_s)
                torch_save.append(torch_save_s / held_s)
                durable.append(durable_s / raw_s)
        ways.writer.close()
    return all(
        [
            show_figure("stall_vs_memcpy", stall, holds=AT_MOST, bar=1.3),
            show_figure("torch_save_vs_stall", torch_save, holds=AT_LEAST, bar=8.0),
            show_figure("durable_vs_raw", durable, holds=AT_MOST, bar=1.4),
        ]
    )


if __name__ == "__main__":
    sys.exit(not main())
