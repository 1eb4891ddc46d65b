"""What a hand-over to a warm worker costs beyond Prefect's own task: at most 50 ms.

Inside one flow, three things take turns, on the model of `configs/stdlib.yaml` with one thread:

- N chunks as a run makes them: N `train_chunk` tasks, each given the pointer of the one before,
- the same number of steps and saves as one request to a second worker, without any task,
- N empty tasks with the same options.

All but the first of the N chunks are hand-overs that the single request is spared, so a sample is
(chunks - single request - empty tasks) / (N - 1), in milliseconds. It holds the request to the
worker, its proof that the live state is the one that the pointer names (a digest of the state, so
it grows with the model), the answer, and what Prefect takes for the task's arguments. A sample can
be off by some milliseconds either way, as both sides wait for the disk; the figure is the median.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own folder is on the path, the one above it is not

HOME = tempfile.TemporaryDirectory(prefix="chunk-overhead-")
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "PREFECT_HOME": f"{HOME.name}/prefect",  # a server of its own, gone with the folder
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
os.environ.pop("PREFECT_API_URL", None)

from figures import AT_MOST, show_figure  # noqa: E402
from prefect import flow, task  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402

from speedtronic import SpeedtronicConfig  # noqa: E402
from speedtronic.checkpoint import Pointer  # noqa: E402
from speedtronic.flows.train import train_chunk  # noqa: E402
from speedtronic.plan import Chunk  # noqa: E402
from speedtronic.report import ChunkReport  # noqa: E402
from speedtronic.worker.chunk import ChunkWorker  # noqa: E402

BAR_MS = 50.0
NUM_SAMPLES = 31
NUM_CHUNKS = 8
CHUNK_STEPS = 1


def configure(output_dir: str) -> SpeedtronicConfig:
    """The recipe, with short steps in short chunks: what is timed should not drown in training."""
    return SpeedtronicConfig.load(ROOT / "configs/stdlib.yaml").override(
        {
            "run.device": "cpu",
            "data.micro_batch_size": 2,
            "data.target_batch_size": 2,
            "run.output_dir": output_dir,
            "checkpoint.every_steps": CHUNK_STEPS,
            "chunk.steps": CHUNK_STEPS,
            "logging.every_steps": CHUNK_STEPS,
        }
    )


@task(cache_policy=NO_CACHE, persist_result=False)
def empty() -> None:
    """What any task costs."""


@flow(name="chunk-overhead")
def measure() -> list[float]:
    """Milliseconds of each sample."""
    samples: list[float] = []
    chunked_config, single_config = configure(f"{HOME.name}/chunked"), configure(f"{HOME.name}/one")
    with ChunkWorker(chunked_config) as chunked, ChunkWorker(single_config) as single:
        pointers = {chunked: chunked.restore(), single: single.restore()}

        def by_tasks() -> None:
            for _ in range(NUM_CHUNKS):
                pointer = pointers[chunked]
                start = pointer.step if pointer else 0
                chunk = Chunk(start, start + CHUNK_STEPS)
                entry = ChunkReport(chunk.start, chunk.target)
                attempt = train_chunk.with_options(task_run_name=chunk.name, retries=3)
                pointers[chunked] = attempt(chunked, chunk, pointer, entry).pointer

        def by_one_request() -> None:
            pointer = pointers[single]
            start = pointer.step if pointer else 0
            chunk = Chunk(start, start + NUM_CHUNKS * CHUNK_STEPS)
            pointers[single] = single.train(chunk, pointer).pointer

        def empty_tasks() -> None:
            for number in range(NUM_CHUNKS):
                empty.with_options(task_run_name=f"empty {number}", retries=3)()

        sides = [by_tasks, by_one_request, empty_tasks]
        for side in sides:  # warm-up
            side()
        for number in range(NUM_SAMPLES):
            turn = number % len(sides)
            taken = {side: timed(side) for side in sides[turn:] + sides[:turn]}
            tasks_s, request_s, empty_s = (taken[side] for side in sides)
            samples.append((tasks_s - request_s - empty_s) / (NUM_CHUNKS - 1) * 1000)
            print(
                f"chunks {tasks_s:.3f} s, one request {request_s:.3f} s, empty tasks {empty_s:.3f} "
                f"s: {samples[-1]:.1f} ms a hand-over",
                file=sys.stderr,
            )
        assert _state(pointers[chunked]) == _state(pointers[single]), "the sides differ"
        assert chunked.restores == single.restores == [0], "a worker was not warm"
    return samples


def _state(pointer: Pointer | None) -> str | None:
    return pointer.state_digest if pointer else None


def timed(run: Callable[[], None]) -> float:
    """Seconds that `run` takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> int:
    with HOME:
        with redirect_stdout(sys.stderr):
            samples = measure()
        return 0 if show_figure("chunk_handover_ms", samples, holds=AT_MOST, bar=BAR_MS) else 1


if __name__ == "__main__":
    sys.exit(main())
