"""A run that signals stop or make save, at any line of code, ends in the very state."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.data.workers import shut_down_workers
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.runtime.signals import TrainingSignals
from tests.own_parts import item
from tests.recipes import load, newest
from tests.tiny import tiny_config
from tests.waiting import Processes, last_step, wait_until

PACKAGE = str(Path(shut_down_workers.__code__.co_filename).parents[1])
NUM_STOPS = 8


class Stopped(BaseException):
    """What SIGTERM does in the end, as in the command line."""


@contextmanager
def at_line(line: int, number: signal.Signals) -> Iterator[list[int]]:
    """Raise a signal as the `line`-th line of what the block runs is reached; gives their number.

    Lines of the package and of the data and models of these tests count.
    """
    seen = [0]

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen[0] += 1
            if seen[0] == line:
                signal.raise_signal(number)
        return local

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        own = name.startswith(PACKAGE) or name.endswith(("own_parts.py", "tests/models.py"))
        return local if own else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield seen
    finally:
        sys.settrace(before)


@pytest.fixture
def sigterm_raises() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    former = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, former)


def train_until(config: SpeedtronicConfig, line: int, number: signal.Signals) -> bool:
    """Whether training was stopped by a signal that comes at the `line`-th line of it."""
    try:
        with TrainingSignals() as signals, build_runtime(config, resume=True) as runtime:
            signals.attach(runtime.trainer)
            with at_line(line, number):
                runtime.train(config.run.max_steps)
    except Stopped:
        return True
    return False


OWN = {"data.shuffle": False, "model.vocab_size": 64}
KINDS: dict[str, dict[str, Any]] = {
    "synthetic": {},
    "batch norm": {
        "data.text_path": "{stdlib}/this.py",
        "data.block_size": 8,
        "data.target_batch_size": 8,
    },
    "map-style": {**OWN, "data.dataset": "tests.own_parts:augmented", "data.shuffle": True},
    "by its state": {**OWN, "data.dataset": "tests.own_parts:stateful_stream"},
    "by skipping": {**OWN, "data.dataset": "tests.own_parts:stream"},
    "validated": {"validation.every_steps": 2, "validation.dataset": "tests.own_parts:augmented"},
}


def run_of(kind: str, directory: Path, **changes: Any) -> SpeedtronicConfig:
    every = {"checkpoint.every_steps": 5, "checkpoint.save_on_stop": True, "run.max_steps": 12}
    config = tiny_config(directory, **{**every, **KINDS[kind], **changes})
    if kind != "batch norm":
        return config
    given = config.model_dump(exclude_unset=True)
    return SpeedtronicConfig.from_dict({**given, "model": {"name": "tests.models:bag_of_bytes"}})


def assert_same_end(config: SpeedtronicConfig, reference: SpeedtronicConfig) -> None:
    assert newest(config).step == newest(reference).step == config.run.max_steps
    assert load(config)["samples"] == load(reference)["samples"]
    assert newest(config).state_digest == newest(reference).state_digest


def lines_of(directory: Path, event: str) -> list[str]:
    """The events of one kind in the metrics file, without what differs from run to run."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [line.partition(', "tokens_per_s"')[0] for line in lines if f'"{event}"' in line]


@pytest.mark.usefixtures("sigterm_raises")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["stop", "save"])
@pytest.mark.parametrize("kind", KINDS)
def test_at_any_line(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    reference = run_of(kind, tmp_path / "reference")
    with build_runtime(reference) as runtime, at_line(-1, number) as lines:
        runtime.train(12)
    config, chance = run_of(kind, tmp_path / "run"), random.Random(f"{kind} {number}")
    steps = []
    for _ in range(NUM_STOPS):
        stopped = train_until(config, chance.randrange(lines[0] // 3), number)
        assert not (stopped and number == signal.SIGUSR1), "it only saves"
        steps.append(
            newest(config).step if (tmp_path / "run/checkpoints/latest.json").exists() else 0
        )
    assert len(set(steps)) > 2 or number == signal.SIGUSR1, "each was in the same step"
    train_from_config(config, resume=True)
    assert_same_end(config, reference)
    for event in ("train_step", "validation"):
        assert lines_of(tmp_path / "run", event) == lines_of(tmp_path / "reference", event)


# --- while something takes for ever ---


class Hanging(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Gives `num_items` items, once each; after that it raises `number`, and waits for ever."""

    number: signal.Signals | None = signal.SIGTERM
    left = 0

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        Hanging.left -= 1
        if Hanging.left == 0:
            if self.number is not None:
                signal.raise_signal(self.number)
            threading.Event().wait()
        return item(index)


class HangingStream(Hanging, torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for index in range(22):
            yield self[index]


def hanging(num_items: int | None = None) -> Hanging:
    if num_items is not None:
        Hanging.left, Hanging.number = num_items, None
    return Hanging()


def hanging_stream() -> HangingStream:
    return HangingStream()


HERE = "tests.integration.test_signals"


@pytest.mark.usefixtures("sigterm_raises")
@pytest.mark.parametrize(
    ("changes", "after", "saved"),
    [
        ({**OWN, "data.dataset": f"{HERE}:hanging"}, 19, 4),  # in the second batch of an update
        ({"validation.every_steps": 3, "validation.dataset": f"{HERE}:hanging"}, 30, 6),
        ({"validation.every_steps": 5, "validation.dataset": f"{HERE}:hanging"}, 1, 5),
    ],
    ids=["data", "a validation", "a validation at a step that is due"],
)
def test_a_wait_is_cut_short(
    changes: dict[str, Any], after: int, saved: int, tmp_path: Path, monkeypatch: Any
) -> None:
    reference = run_of("synthetic", tmp_path / "reference", **changes)
    train_from_config(reference)
    config = run_of("synthetic", tmp_path / "run", **changes)
    with pytest.raises(Stopped), build_signalled(config) as runtime:
        monkeypatch.setattr(Hanging, "left", after)
        runtime.train(12)
    assert newest(config).step == saved
    train_from_config(config, resume=True)
    assert_same_end(config, reference)
    for event in ("train_step", "validation"):
        assert lines_of(tmp_path / "run", event) == lines_of(tmp_path / "reference", event)


@pytest.mark.usefixtures("sigterm_raises")
def test_skipping_is_cut_short(tmp_path: Path, monkeypatch: Any) -> None:
    config = run_of("synthetic", tmp_path, **OWN, **{"data.dataset": f"{HERE}:hanging_stream"})
    train_from_config(config, max_steps=7)
    with pytest.raises(Stopped), build_signalled(config) as runtime:
        monkeypatch.setattr(Hanging, "left", 20)  # of 28
        runtime.train(12)
    assert newest(config).step == 7


@pytest.mark.parametrize(
    "changes",
    [
        {**OWN, "data.dataset": f"{HERE}:hanging"},
        {**OWN, "data.dataset": f"{HERE}:hanging_stream"},
        {"validation.every_steps": 1, "validation.dataset": f"{HERE}:hanging"},
    ],
    ids=["data", "a stream", "a validation"],
)
def test_a_save_cuts_a_wait_short_that_lasts(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("speedtronic.runtime.signals.SAVE_PATIENCE_S", 0.01)
    changes = {**changes, "checkpoint.every_steps": 1000}
    reference = run_of("synthetic", tmp_path / "reference", **changes)
    train_from_config(reference)
    config = run_of("synthetic", tmp_path / "run", **changes)
    with build_signalled(config) as runtime:
        monkeypatch.setattr(Hanging, "number", signal.SIGUSR1)
        monkeypatch.setattr(Hanging, "left", 15)
        assert runtime.train(12).steps == 12
    steps = [saved.pointer.step for saved in runtime.saves]
    assert len(steps) == 2 and steps[0] < steps[1] == 12
    assert_same_end(config, reference)


@contextmanager
def build_signalled(config: SpeedtronicConfig) -> Iterator[Any]:
    with TrainingSignals() as signals, build_runtime(config, resume=True) as runtime:
        signals.attach(runtime.trainer)
        yield runtime


# --- real processes ---


@pytest.mark.parametrize(
    ("number", "code", "num_workers"), [(signal.SIGTERM, 143, 2), (signal.SIGHUP, 129, 0)]
)
def test_a_process_group_that_waits_for_data(
    number: signal.Signals, code: int, num_workers: int, tmp_path: Path
) -> None:
    """As Slurm: a warning, which saves, and the end."""
    config = run_of(
        "synthetic",
        tmp_path,
        **OWN,
        **{"data.dataset": f"{HERE}:hanging", "data.dataset_args": {"num_items": 40}},
        **{"data.num_workers": num_workers, "run.max_steps": 1000, "checkpoint.every_steps": 1000},
    )
    (tmp_path / "given.yaml").write_text(config.to_yaml())
    command = [sys.executable, "-m", "speedtronic", "train", "--config", tmp_path / "given.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as p:
        try:
            assert wait_until(lambda: last_step(tmp_path / "metrics.jsonl") >= 3, 60)
            os.killpg(p.pid, signal.SIGUSR1)
            pointer = tmp_path / "checkpoints/latest.json"
            assert wait_until(pointer.exists, 30), "it is not saved, or the process has ended"
            assert newest(config).step >= 3
            os.killpg(p.pid, number)
            os.killpg(p.pid, number)  # as `timeout` does: once to the process, once to the group
            assert p.wait(20) == code
        finally:
            p.kill()
        assert p.stderr is not None
        name = number.name
        assert f"speedtronic: stopped by {name}; --resume goes on\n" in p.stderr.read()


def test_verify_ends_while_its_process_loads(tmp_path: Path) -> None:
    train_from_config(run_of("synthetic", tmp_path))
    command = [sys.executable, "-m", "speedtronic", "verify", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert wait_until(lambda: bool(children_with_torch(process.pid)), 60)
            pids = children_with_torch(process.pid)
            os.kill(pids[0], signal.SIGSTOP)  # it never answers
            with Processes(pids) as loading:
                process.terminate()
                assert process.wait(20) == 143
                assert loading.end_within()
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == "speedtronic: stopped by SIGTERM\n"


def children_with_torch(pid: int) -> list[int]:
    """The children that import torch or have; one not yet there may still be unknown to `pid`."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in children if "libtorch" in Path(f"/proc/{child}/maps").read_text()]
