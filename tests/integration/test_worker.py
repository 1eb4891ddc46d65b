"""A chunk's process: how its end is told, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedtronic.checkpoint import RunLock
from speedtronic.errors import RunLockedError, WorkerDied, WorkerFailed, WorkerHung
from speedtronic.plan import Chunk
from speedtronic.runtime import train_from_config
from speedtronic.storage.lock import read_lock_record
from speedtronic.worker.chunk import ChunkWorker
from tests.recipes import exact_recipe, load, newest
from tests.waiting import ENDINGS, Processes, last_step, wait_until

FAR = Chunk(0, 100_000)
HANG_S = 25.0  # a process takes some seconds to start, more on a busy machine


@contextmanager
def signalling(worker: ChunkWorker, metrics: Path, *numbers: signal.Signals) -> Iterator[None]:
    """Send signals to the worker's process as soon as it has made ten updates."""
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.005):
            if worker.pid is not None and last_step(metrics) >= 10:
                for number in numbers:
                    os.kill(worker.pid, number)
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(("number", "said"), ENDINGS)
def test_a_signal_is_named_and_the_next_attempt_goes_on(
    number: signal.Signals, said: str, tmp_path: Path
) -> None:
    config = exact_recipe(tmp_path)
    with ChunkWorker(config) as worker:
        with (
            signalling(worker, tmp_path / "metrics.jsonl", number),
            pytest.raises(WorkerDied) as caught,
        ):
            worker.train(FAR, None)
        assert said in str(caught.value)
        assert worker.pid is None, "the dead process was not reaped"
        assert worker.failed_in_a_row == 0, "it had committed checkpoints"
        before = newest(config).step
        assert before >= 4
        result = worker.train(Chunk(0, before + 4), None)
        assert result.trained_to == before + 4
        assert worker.restores == [0, before]


def test_failures_without_a_new_checkpoint_are_counted_in_a_row(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"checkpoint.every_steps": 1000, "chunk.steps": 1000})
    metrics = tmp_path / "metrics.jsonl"
    with ChunkWorker(config) as worker:
        for expected in (1, 2):
            with signalling(worker, metrics, signal.SIGKILL), pytest.raises(WorkerDied):
                worker.train(FAR, None)
            assert worker.failed_in_a_row == expected
            metrics.unlink()
        worker.train(Chunk(0, 2), None)
        assert worker.failed_in_a_row == 0


def test_a_hung_process_is_killed_and_the_next_attempt_gets_the_lock(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"chunk.hang_timeout_s": HANG_S})
    with ChunkWorker(config) as worker:
        with (
            signalling(worker, tmp_path / "metrics.jsonl", signal.SIGSTOP),
            pytest.raises(WorkerHung, match=r"no progress for 25 s \(last step: \d+; it was .+\)"),
        ):
            worker.train(FAR, None)
        assert worker.pid is None
        done = newest(config).step + 4
        assert worker.train(Chunk(0, done), None).trained_to == done


def test_slow_but_moving_is_not_hung(tmp_path: Path) -> None:
    changes = {"chunk.hang_timeout_s": HANG_S, "data.target_batch_size": 64}
    target, num_steps, elapsed_s = 0, 100, 0.0
    with ChunkWorker(exact_recipe(tmp_path, **changes)) as worker:
        worker.restore()
        while elapsed_s < HANG_S:
            target += num_steps
            started = time.monotonic()
            assert worker.train(Chunk(0, target), None).trained_to == target
            elapsed_s = time.monotonic() - started
            num_steps = max(100, round(1.3 * HANG_S / elapsed_s * num_steps))


@pytest.mark.parametrize("gone", ["input", "events"])
def test_without_a_parent_the_process_ends_at_once_and_says_nothing(
    gone: str, tmp_path: Path
) -> None:
    config = exact_recipe(tmp_path, **{"run.max_steps": 1_000_000})
    events, told = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "speedtronic.worker.chunk_main", str(told), str(os.getpid())],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[told],
        text=True,
    ) as process:
        os.close(told)
        assert process.stdin is not None and process.stderr is not None
        train = {"command": "train", "target": 4 if gone == "input" else 1_000_000}
        for request in (
            {"config": config.to_dict(), "allow_changes": [], "target": train["target"]},
            train | {"pointer": None, "reject": None},
        ):
            process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        if gone == "events":
            assert os.read(events, 1)
            os.close(events)
        else:
            process.stdin.close()
        # Not by returning: to shut an interpreter with torch down takes a second, in which the
        # thread that looks for the parent stands still.
        try:
            assert process.wait(60) == -signal.SIGKILL
            assert process.stderr.read() == ""
        finally:
            process.kill()
            if gone == "input":
                os.close(events)


PARENT = """
import sys
from speedtronic import SpeedtronicConfig
from speedtronic.plan import Chunk
from speedtronic.worker.chunk import ChunkWorker
worker = ChunkWorker(SpeedtronicConfig.load(sys.argv[1]))
worker.train(Chunk(0, 100_000), None)
"""


def test_everything_ends_with_the_parent(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path / "run", **{"data.num_workers": 2})
    (tmp_path / "given.yaml").write_text(config.to_yaml())
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "given.yaml")]) as parent:
        assert wait_until(lambda: last_step(tmp_path / "run/metrics.jsonl") >= 10, 60)
        worker = read_lock_record(config.checkpoint_dir)["pid"]
        assert isinstance(worker, int)
        loaders = _children(worker)
        assert len(loaders) == 2
        with Processes([worker, *loaders]) as processes:
            parent.kill()
            assert processes.end_within()
        lock = RunLock(config.checkpoint_dir)
        lock.acquire()
        lock.release()
    reached = newest(config).step + 4
    assert train_from_config(config, resume=True, max_steps=reached).steps == reached


def test_loader_workers_do_not_keep_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"data.num_workers": 2})
    with ChunkWorker(config) as worker:
        with (
            signalling(worker, tmp_path / "metrics.jsonl", signal.SIGKILL),
            pytest.raises(WorkerDied),
        ):
            worker.train(FAR, None)
        lock = RunLock(config.checkpoint_dir)
        lock.acquire()
        lock.release()


def test_a_second_run_in_the_directory_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    with ChunkWorker(config) as worker:
        worker.restore()
        with pytest.raises(RunLockedError, match=f"pid {worker.pid} on "):
            train_from_config(config, resume=True)
        with ChunkWorker(config) as second, pytest.raises(WorkerFailed, match="RunLocked") as error:
            second.restore()
        assert error.value.retryable, "the holder may be about to end"


@pytest.mark.parametrize("save_on_stop", [True, False])
def test_closing_in_training_saves_to_the_very_step_only_if_told_to(
    save_on_stop: bool, tmp_path: Path
) -> None:
    changes = {"checkpoint.every_steps": 1000, "checkpoint.save_on_stop": save_on_stop}
    config = exact_recipe(tmp_path, **changes)
    worker = ChunkWorker(config)
    with (
        signalling(worker, tmp_path / "metrics.jsonl", signal.SIGTERM),
        pytest.raises(WorkerDied, match="stopped on SIGTERM"),
    ):
        worker.train(FAR, None)
    if save_on_stop:
        assert newest(config).step == last_step(tmp_path / "metrics.jsonl") >= 10
        assert load(config)["samples"] == newest(config).step * config.data.target_batch_size
    else:
        assert not list((tmp_path / "checkpoints").glob("step_*"))


def test_a_stop_at_an_odd_step_does_not_change_the_end(tmp_path: Path) -> None:
    reference = exact_recipe(tmp_path / "reference")
    train_from_config(reference)
    config = exact_recipe(tmp_path / "stopped", **{"checkpoint.save_on_stop": True})
    train_from_config(config, max_steps=13)
    assert newest(config).step == 13
    train_from_config(config, resume=True)
    assert newest(config).state_digest == newest(reference).state_digest


def _change_the_live_state(config_dir: Path) -> None:
    """Nothing from outside can; so change what the pointer is checked against instead."""
    manifest = config_dir / "checkpoints/step_000000000008.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"samples": 64', b'"samples": 65'))


def test_a_warm_process_proves_its_state_or_reloads(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    with ChunkWorker(config) as worker:
        first = worker.train(Chunk(0, 4), None)
        second = worker.train(Chunk(4, 8), first.pointer)
        assert worker.restores == [0], "a warm process that agrees with the pointer does not reload"
        third = worker.train(Chunk(8, 12), second.pointer)
        assert worker.restores == [0]
        # Handed an older pointer, it must not go on from where it happens to be.
        worker.train(Chunk(8, 12), second.pointer)
        assert worker.restores == [0, 12]
        assert third.pointer is not None
        # A pointer that the store does not confirm.
        forged = third.pointer.model_copy(update={"state_digest": "state1:" + 32 * "0"})
        result = worker.train(Chunk(12, 16), forged)
        assert worker.restores == [0, 12, 12]
        assert result.trained_to == 16


def test_a_manifest_changed_behind_a_warm_process_is_noticed(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    with ChunkWorker(config) as worker:
        pointer = worker.train(Chunk(0, 8), None).pointer
        _change_the_live_state(tmp_path)
        result = worker.train(Chunk(8, 12), pointer)
        assert worker.restores == [0, 4], "step 8 is damaged: back to 4"
        assert result.trained_to == 12
    assert (tmp_path / "checkpoints/quarantine/step_000000000008.pt").exists()


def test_steps_past_the_last_multiple_are_trained_but_not_pointed_to(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    with ChunkWorker(config) as worker:
        result = worker.train(Chunk(0, 10), None)
        assert result.pointer is not None
        assert (result.pointer.step, result.trained_to) == (8, 10)
        again = worker.train(Chunk(8, 12), result.pointer)  # not from 10, which is nowhere
        assert worker.restores == [0, 8]
        assert again.trained_to == 12
    reference = exact_recipe(tmp_path / "reference")
    train_from_config(reference, max_steps=12)
    assert newest(config).state_digest == newest(reference).state_digest


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"data.text_path": "/nowhere/*.txt"}, "DataError"),
        ({"run.device": "cuda"}, "DeviceError"),
        ({"optimizer.lr": 1e30, "optimizer.grad_clip": None}, "NonFiniteError"),
    ],
)
def test_what_a_person_has_to_mend_is_told_as_such(
    changes: dict[str, object], kind: str, tmp_path: Path
) -> None:
    with (
        ChunkWorker(exact_recipe(tmp_path, **changes)) as worker,
        pytest.raises(WorkerFailed) as error,
    ):
        worker.train(Chunk(0, 40), None)
    assert (error.value.kind, error.value.retryable) == (kind, False)
    assert "Traceback" not in str(error.value)


def test_an_allowed_change_reaches_the_process(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=4)
    changed = config.override({"optimizer.lr": 1e-4})
    with ChunkWorker(changed) as worker, pytest.raises(WorkerFailed, match="DriftError") as error:
        worker.restore()
    assert not error.value.retryable
    with ChunkWorker(changed, allow_changes=["optimizer.lr"]) as worker:
        result = worker.train(Chunk(4, 8), None)
    assert result.trained_to == 8
    assert [note.partition(":")[0] for note in result.notes] == ["optimizer.lr"]


def test_log_lines_of_the_process_reach_the_parent(tmp_path: Path) -> None:
    lines: list[tuple[int, str, str]] = []

    def take(level: int, name: str, message: str) -> None:
        lines.append((level, name, message))

    with ChunkWorker(exact_recipe(tmp_path), on_log=take) as worker:
        worker.train(Chunk(0, 8), None)
    assert any("step 8/8  loss " in message for _, _, message in lines)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
