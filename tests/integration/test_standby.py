"""Training children forked from a standby are like those started in full, and end like them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.errors import WorkerDied
from speedtronic.plan import Chunk
from speedtronic.runtime import train_from_config
from speedtronic.worker import standby
from speedtronic.worker.chunk import ChunkWorker
from speedtronic.worker.standby import STANDBY
from tests.recipes import exact_recipe, newest
from tests.waiting import ENDINGS, Processes, last_step, wait_until

FAR = Chunk(0, 100_000)
READY_S = 60.0


@contextmanager
def forked_worker(config: SpeedtronicConfig) -> Iterator[ChunkWorker]:
    """A worker whose next process is forked."""
    with ChunkWorker(config) as worker:
        worker.restore()
        assert STANDBY.wait_until_ready(READY_S)
        worker.kill()
        yield worker


@contextmanager
def signalled(metrics: Path, worker: ChunkWorker, number: signal.Signals) -> Iterator[None]:
    """Send a signal to the worker's process once it has made ten updates."""
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.005):
            if worker.pid is not None and last_step(metrics) >= 10:
                os.kill(worker.pid, number)
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def parent_of(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


@pytest.mark.parametrize(("number", "said"), ENDINGS)
def test_the_end_of_a_forked_process_is_named_and_the_next_goes_on(
    number: signal.Signals, said: str, tmp_path: Path
) -> None:
    config = exact_recipe(tmp_path)
    with forked_worker(config) as worker:
        with (
            signalled(tmp_path / "metrics.jsonl", worker, number),
            pytest.raises(WorkerDied) as caught,
        ):
            worker.train(FAR, None)
        assert said in str(caught.value)
        assert worker.pid is None
        done = newest(config).step + 4
        assert worker.train(Chunk(0, done), None).trained_to == done
        assert parent_of(worker.pid) == STANDBY.pid


SAME_BITS = """
import os, sys
from speedtronic import SpeedtronicConfig
from speedtronic.plan import Chunk
from speedtronic.worker.chunk import ChunkWorker
from speedtronic.worker.standby import STANDBY
config = SpeedtronicConfig.load(sys.argv[1])
with ChunkWorker(config) as worker:
    pointer = worker.train(Chunk(0, 8), None).pointer
    if config.chunk.standby:
        assert STANDBY.wait_until_ready(60)
    worker.kill()
    result = worker.train(Chunk(8, 24), pointer)
    assert worker.restores == [0, 8]
    forked = open(f"/proc/{worker.pid}/cmdline").read().find("standby_main") >= 0
    assert forked == config.chunk.standby
    print(result.pointer.state_digest, result.notes)
"""


@pytest.mark.parametrize("num_threads", ["1", "2"])
def test_a_forked_process_trains_to_the_same_bits(num_threads: str, tmp_path: Path) -> None:
    printed = set()
    for is_kept in (True, False):
        path = tmp_path / f"{is_kept}.yaml"
        changes = {"chunk.standby": is_kept, "model.d_model": 128}  # enough to share out
        path.write_text(exact_recipe(tmp_path / str(is_kept), **changes).to_yaml())
        environment = os.environ | {"OMP_NUM_THREADS": num_threads}
        command = [sys.executable, "-c", SAME_BITS, str(path)]
        printed.add(subprocess.check_output(command, env=environment, timeout=120))
    assert len(printed) == 1


def test_interrupted_or_not_a_run_ends_in_the_same_state(tmp_path: Path) -> None:
    reference = exact_recipe(tmp_path / "reference")
    train_from_config(reference, max_steps=24)
    config = exact_recipe(tmp_path / "run", **{"data.num_workers": 2})
    with forked_worker(config) as worker:
        pointer = worker.train(Chunk(0, 8), None).pointer
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            worker.train(Chunk(8, 24), pointer)
        worker.train(Chunk(8, 24), pointer)
        assert worker.restores == [0, 0, 8]
    assert newest(config).state_digest == newest(reference).state_digest


def test_without_its_standby_a_process_trains_on(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    with forked_worker(config) as worker:
        pointer = worker.train(Chunk(0, 4), None).pointer
        forked, killed = worker.pid, STANDBY.pid
        assert killed is not None and parent_of(forked) == killed
        with Processes([killed]) as processes:
            os.kill(killed, signal.SIGKILL)
            assert processes.end_within()
        pointer = worker.train(Chunk(4, 8), pointer).pointer
        assert (worker.pid, worker.restores[-1]) == (forked, 0)
        assert forked is not None
        os.kill(forked, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="ended, and so did the standby process"):
            worker.train(FAR, pointer)
        assert worker.train(Chunk(8, 12), pointer).trained_to == 12
        assert parent_of(worker.pid) == os.getpid(), "there was none to fork it"
        assert STANDBY.wait_until_ready(READY_S), "no other standby was begun"
        assert STANDBY.pid != killed


PARENT = """
import sys, threading
from speedtronic import SpeedtronicConfig
from speedtronic.plan import Chunk
from speedtronic.worker.chunk import ChunkWorker
from speedtronic.worker.standby import STANDBY
with ChunkWorker(SpeedtronicConfig.load(sys.argv[1])) as worker:
    worker.restore()
    if sys.argv[2] == "importing":
        print(STANDBY.pid, worker.pid, flush=True)
        worker.train(Chunk(0, 100_000), None)
    assert STANDBY.wait_until_ready(60)
    if sys.argv[2] == "ready":
        print(STANDBY.pid, worker.pid, flush=True)
        worker.train(Chunk(0, 100_000), None)
    worker.kill()
    worker.restore()
    print(STANDBY.pid, worker.pid, flush=True)
    worker.train(Chunk(0, 100_000), None)
"""


@pytest.mark.parametrize("moment", ["importing", "ready", "forked"])
def test_standby_and_forked_process_end_with_the_parent(moment: str, tmp_path: Path) -> None:
    config = exact_recipe(tmp_path / "run", **{"data.num_workers": 2})
    (tmp_path / "given.yaml").write_text(config.to_yaml())
    command = [sys.executable, "-c", PARENT, str(tmp_path / "given.yaml"), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        with Processes(pids) as processes:
            if moment == "forked":
                assert wait_until(lambda: last_step(tmp_path / "run/metrics.jsonl") >= 10, 60)
                pids += _children(pids[1])
                assert len(pids) == 4
            with Processes(pids) as all_processes:
                parent.kill()
                assert processes.end_within()
                assert all_processes.end_within()


@pytest.mark.parametrize("killed", ["parent", "both"])
def test_a_parent_killed_while_its_standby_is_stopped_leaves_nothing(
    killed: str, tmp_path: Path
) -> None:
    config = exact_recipe(tmp_path / "run")
    (tmp_path / "given.yaml").write_text(config.to_yaml())
    command = [sys.executable, "-c", PARENT, str(tmp_path / "given.yaml"), "forked"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        kept, worker = map(int, parent.stdout.readline().split())
        with Processes([worker]) as child, Processes([kept]) as server:
            os.kill(kept, signal.SIGSTOP)
            if killed == "both":
                os.kill(kept, signal.SIGKILL)
            parent.kill()
            assert child.end_within()
            if killed == "parent":
                os.kill(kept, signal.SIGCONT)
            assert server.end_within()


USER_MODEL = """
import os, torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 256)
        with open(os.environ["TOLD"], "a") as file:
            print("{version}", os.environ.get("MINE"), os.getcwd(), file=file)
    def forward(self, input_ids, labels):
        logits = self.table(input_ids)
        return {{"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}}
"""


def test_edits_of_user_code_and_changes_of_the_environment_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, told = tmp_path / "my_edited_model.py", tmp_path / "told.txt"
    config = exact_recipe(tmp_path / "run").to_dict()
    config["model"] = {"name": "my_edited_model:Model"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    module.write_text(USER_MODEL.format(version="first"))
    with forked_worker(SpeedtronicConfig.from_dict(config)) as worker:
        monkeypatch.setenv("MINE", "changed")
        module.write_text(USER_MODEL.format(version="second"))
        worker.restore()
        assert parent_of(worker.pid) == STANDBY.pid
    assert told.read_text().splitlines() == [
        f"first None {tmp_path}",
        f"second changed {tmp_path}",
    ]


@pytest.mark.parametrize("reason", ["variable", "directory", "configured", "platform"])
def test_where_it_would_not_be_the_same_the_process_starts_in_full(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = exact_recipe(tmp_path)
    if reason in ("variable", "directory"):
        with forked_worker(config):
            pass
    if reason == "variable":
        monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    elif reason == "directory":
        monkeypatch.chdir(tmp_path)
    elif reason == "configured":
        config = config.override({"chunk.standby": False})
    else:
        monkeypatch.setattr(standby, "IS_SAFE_TO_FORK", False)
        own = standby.SharedStandby()
        with own.held():
            own.begin()
            assert own.pid is None
            assert own.fork(0, 1) is None
        return
    with ChunkWorker(config) as worker:
        worker.restore()
        assert parent_of(worker.pid) == os.getpid()


def test_the_standby_is_one_thread_and_ends_with_the_last_holder(tmp_path: Path) -> None:
    own = standby.SharedStandby()
    own.begin()
    assert own.pid is None, "nobody holds it"
    with own.held():
        with own.held():
            own.begin()
            assert own.wait_until_ready(READY_S)
            pid = own.pid
            assert pid is not None
            assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
            own.begin()
            assert own.pid == pid
        with Processes([pid]) as processes:
            assert processes.num_running() == 1
    assert own.pid is None
    assert not Path(f"/proc/{pid}").exists(), "not reaped"


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
