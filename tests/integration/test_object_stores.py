"""A run whose checkpoints lie in an object store: the same commands, crashes and bits."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import layout, open_storage
from speedtronic.cli import main
from speedtronic.errors import WorkerDied, WorkerFailed
from speedtronic.plan import Chunk
from speedtronic.runtime import train_from_config
from speedtronic.storage.names import LOCK
from speedtronic.storage.s3 import S3Storage
from speedtronic.worker.chunk import ChunkWorker
from tests.buckets import BUCKET, keys, s3_server, uploads
from tests.recipes import newest
from tests.tiny import names, tiny_config, tiny_file
from tests.waiting import wait_until

STEPS = 40
START_S = 60.0  # for a process, on a busy machine
LONG: dict[str, Any] = {"run.max_steps": STEPS, "scheduler.max_steps": STEPS}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an uninterrupted run on a local disk."""
    config = tiny_config(tmp_path_factory.mktemp("reference"), **LONG)
    train_from_config(config)
    return newest(config).state_digest


def command(file: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "speedtronic", "train", "--config", file, *options]


def saved(config: SpeedtronicConfig) -> int:
    """The newest committed step."""
    found = open_storage(config.checkpoint_dir).list()
    steps = [layout.step_of(name) or 0 for name in found if name.endswith(".json")]
    return max(steps, default=0)


def test_killed_and_resumed_it_is_the_run_on_a_local_disk(
    server: str, tmp_path: Path, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {**LONG, "checkpoint.directory": f"s3://{BUCKET}/killed"}
    config = tiny_config(tmp_path / "run", **changes)
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **changes)
    process = subprocess.Popen(command(file))
    try:
        assert wait_until(lambda: saved(config) >= 6, START_S)
        process.send_signal(signal.SIGSTOP)  # it waits for us, and its lease runs on
        with ChunkWorker(config) as second, pytest.raises(WorkerFailed) as refused:
            second.restore()
        assert f"pid {process.pid} on " in str(refused.value)
        assert refused.value.kind == "RunLockedError"
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    stopped_at = saved(config)
    assert stopped_at < STEPS

    with ChunkWorker(config) as worker:  # at once: its holder was a process of this machine
        pointer = worker.restore()
        assert pointer is not None and pointer.step in (stopped_at - 2, stopped_at)
        result = worker.train(Chunk(pointer.step, STEPS), pointer)
    assert result.pointer is not None
    assert (result.pointer.step, result.pointer.state_digest) == (STEPS, reference)
    assert uploads() == []
    assert "checkpoints" not in names(tmp_path / "run")
    for place in (str(tmp_path / "run"), f"s3://{BUCKET}/killed"):
        assert main(["inspect", "--json", place]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["selected"] == STEPS
        assert found["checkpoints"][0]["state_digest"] == reference
    assert main(["train", "--config", file]) == 2  # there is a run already


def test_a_worker_killed_between_chunks(server: str, tmp_path: Path, reference: str) -> None:
    config = tiny_config(
        tmp_path / "run", **{**LONG, "checkpoint.directory": f"s3://{BUCKET}/chunks"}
    )
    with ChunkWorker(config) as worker:
        pointer = worker.train(Chunk(0, 20), None).pointer
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            worker.train(Chunk(20, STEPS), pointer)
        result = worker.train(Chunk(20, STEPS), pointer)
        assert worker.restores == [0, 20]
    assert result.pointer is not None and result.pointer.state_digest == reference


def test_in_memory(tmp_path: Path, reference: str) -> None:
    directory = f"memory://{tmp_path}"
    config = tiny_config(tmp_path / "run", **{**LONG, "checkpoint.directory": directory})
    train_from_config(config, max_steps=20)
    train_from_config(config, resume=True)
    assert newest(config).state_digest == reference
    assert "checkpoints" not in names(tmp_path / "run")
    fork = tiny_config(tmp_path / "fork", **LONG)
    train_from_config(fork, fork_from=(directory, STEPS - 2))
    assert newest(fork).state_digest == reference


def test_a_url_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in ("gopher://host/x", "s3://key:hunter2@bucket/x"):
        changes = {"checkpoint.directory": url}
        file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **changes)
        assert main(["train", "--config", file]) == 2
        said = capsys.readouterr().err
        assert url.partition(":")[0] in said and "hunter2" not in said
    assert names(tmp_path) == ["run.yaml"]
    assert main(["inspect", "s3://key:hunter2@bucket/x"]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_stopped_expired_and_taken_over_it_changes_nothing(server: str, tmp_path: Path) -> None:
    changes = {**LONG, "run.max_steps": 100_000, "checkpoint.directory": f"s3://{BUCKET}/stopped"}
    config = tiny_config(tmp_path / "run", **changes)
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **changes)
    storage = open_storage(config.checkpoint_dir)
    old = subprocess.Popen(command(file), stderr=subprocess.PIPE, text=True)
    assert old.stderr is not None
    said: list[str] = []
    reading = threading.Thread(target=lambda: said.extend(old.stderr or []))
    reading.start()
    try:
        assert wait_until(lambda: saved(config) >= 6, START_S)
        old.send_signal(signal.SIGSTOP)
        content, version = storage.read_version(LOCK)  # type: ignore[union-attr]
        record = json.loads(content) | {"lease_s": 0.0}  # as if it had been stopped for long
        assert storage.swap(LOCK, json.dumps(record).encode(), version)  # type: ignore[union-attr]
        elsewhere = ("--output-dir", str(tmp_path / "another machine"))
        target = f"run.max_steps={saved(config) + 6}"
        new = subprocess.Popen(command(file, "--resume", *elsewhere, "--set", target))
        assert new.wait() == 0
        before = {name: storage.size(name) for name in keys("stopped/")}
        etags = _etags("stopped/")
        old.send_signal(signal.SIGCONT)
        assert old.wait(START_S) == 1
    finally:
        old.kill()
        old.wait()
        reading.join()
        old.stderr.close()
    assert f"is held by pid {new.pid} on " in said[-1]
    assert {name: storage.size(name) for name in keys("stopped/")} == before
    assert _etags("stopped/") == etags


def _etags(prefix: str) -> dict[str, str]:
    from tests.buckets import client

    found = client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
    return {entry["Key"]: entry["ETag"] for entry in found}


def test_the_age_of_a_lease_is_told_by_the_servers_clock(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(f"s3://{BUCKET}/age")
    assert isinstance(storage, S3Storage)
    assert storage.age_s(LOCK) == 0.0
    assert storage.swap(LOCK, b"{}", "")
    monkeypatch.setattr(time, "time", lambda: 0.0)  # here it is 1970
    assert -2 < storage.age_s(LOCK) < 60
