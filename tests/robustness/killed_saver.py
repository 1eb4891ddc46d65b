"""A process that saves until it is killed, and then another one: told over pipes, one line each.

    stdin   go                      stdout  started PID
                                            saved STEP      durable by now
                                            ended

Each saver is a fork of this process, which has imported torch and never used it, so that starting
one takes a millisecond.

    python -m tests.robustness.killed_saver DIRECTORY KEEP_LAST
"""

import os
import sys
from pathlib import Path

import torch

from speedtronic.checkpoint.writer import CheckpointWriter
from speedtronic.storage.local import LocalStorage
from tests.robustness.stage import real_store, state_at


def tell(line: str) -> None:
    """One write, so that no kill can tear it."""
    os.write(1, f"{line}\n".encode())


def save_for_ever(root: Path, keep_last: int, *, background: bool) -> None:
    """Resume, then save every second step, saying so of each once it is durable."""
    store = real_store(LocalStorage(root), keep_last=keep_last)
    checkpoint = store.select()
    step = checkpoint.manifest.step if checkpoint else 0
    writer = CheckpointWriter(
        lambda state: (store.save(state), store.last_size_bytes), background=background
    )
    while True:
        step += 2
        writer.save(state_at(step))
        for saved in writer.finished():
            tell(f"saved {saved.pointer.step}")


def main(root: Path, keep_last: int) -> None:
    torch.set_num_threads(1)
    for number, _ in enumerate(sys.stdin):
        pid = os.fork()
        if pid == 0:
            try:
                save_for_ever(root, keep_last, background=number % 2 == 1)
            finally:
                os._exit(1)
        tell(f"started {pid}")
        os.waitpid(pid, 0)
        tell("ended")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
