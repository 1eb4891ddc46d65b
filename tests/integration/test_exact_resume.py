"""However a run is cut up, it ends in the state of the uninterrupted run, to the bit."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.errors import WorkerDied
from speedtronic.plan import plan_chunks
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.training.metrics import read_events
from speedtronic.worker.chunk import ChunkWorker
from speedtronic.worker.standby import STANDBY
from tests.recipes import assert_same_tensors, exact_recipe, load, newest
from tests.waiting import kill_at_step

NUM_STEPS = 48
TIMES = ("tokens_per_s",)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> SpeedtronicConfig:
    config = exact_recipe(tmp_path_factory.mktemp("uninterrupted"))
    train_from_config(config)
    return config


def assert_identical(config: SpeedtronicConfig, reference: SpeedtronicConfig) -> None:
    assert newest(config).step == NUM_STEPS
    assert newest(config).state_digest == newest(reference).state_digest
    assert_same_tensors(load(config), load(reference))
    assert metrics(config) == metrics(reference)


def metrics(config: SpeedtronicConfig) -> list[dict[str, Any]]:
    """The recorded steps without what depends on the clock."""
    events = read_events(Path(config.run.output_dir) / "metrics.jsonl", "train_step")
    return [{k: v for k, v in event.items() if k not in TIMES} for event in events]


def test_the_recipe_is_hard_enough(uninterrupted: SpeedtronicConfig) -> None:
    state = load(uninterrupted)
    assert state["data"]["epoch"] >= 3
    assert state["data"]["epoch_samples"] % uninterrupted.data.target_batch_size != 0
    assert [event["step"] for event in metrics(uninterrupted)] == list(range(1, NUM_STEPS + 1))
    assert metrics(uninterrupted)[-1]["loss"] < metrics(uninterrupted)[0]["loss"] - 1


def test_repeating_a_run_repeats_it(uninterrupted: SpeedtronicConfig, tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config)
    assert_identical(config, uninterrupted)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6, 8, 12, 24])
def test_chunks_of_any_size(
    steps: int, workers: int, uninterrupted: SpeedtronicConfig, tmp_path: Path
) -> None:
    config = exact_recipe(
        tmp_path, **{"checkpoint.every_steps": steps, "data.num_workers": workers}
    )
    for target in range(steps, NUM_STEPS + 1, steps):
        result = train_from_config(config, resume=True, max_steps=target)
        assert result.steps == target
    assert_identical(config, uninterrupted)


@pytest.mark.parametrize("workers", [0, 2])
def test_twenty_kills_at_random_moments(
    workers: int, uninterrupted: SpeedtronicConfig, tmp_path: Path
) -> None:
    changes = {"checkpoint.every_steps": 2, "chunk.steps": 24, "data.num_workers": workers}
    config = exact_recipe(tmp_path / "killed", **changes)
    rng = random.Random(workers)
    # (step to wait for, seconds after it): four while a process starts, the rest in training.
    start_s = seconds_to_start([exact_recipe(tmp_path / name, **changes) for name in "ab"])
    moments = [(0, rng.uniform(0, start_s)) for _ in range(4)]
    moments += [(step, rng.uniform(0, 0.02)) for step in sorted(rng.choices(range(1, 40), k=16))]
    num_kills = 0
    pointer = None
    with ChunkWorker(config) as worker:
        for chunk in plan_chunks(start=0, target=NUM_STEPS, chunk_steps=config.chunk.steps):
            result = None
            while result is None:
                with killing(worker, config, moments[0] if moments else (NUM_STEPS + 1, 0.0)):
                    try:
                        result = worker.train(chunk, pointer)
                    except WorkerDied as error:
                        assert "SIGKILL" in str(error)
                        num_kills += 1
                        moments.pop(0)
            pointer = result.pointer
    assert num_kills == 20
    assert_identical(config, uninterrupted)


def seconds_to_start(configs: list[SpeedtronicConfig]) -> float:
    """How long this machine takes until a process that a standby forks has trained two steps.

    All but the last of the runs are for the standby, which begins beside the first of them.
    """
    with STANDBY.held():
        for config in configs:
            begun = time.monotonic()
            with ChunkWorker(config) as worker:
                worker.train(plan_chunks(start=0, target=2, chunk_steps=2)[0], None)
                taken_s = time.monotonic() - begun  # and not what ending it takes
            assert STANDBY.wait_until_ready(60)
        return taken_s


@contextmanager
def killing(
    worker: ChunkWorker, config: SpeedtronicConfig, moment: tuple[int, float]
) -> Iterator[None]:
    """Kill the worker at `moment` if the block lasts so long."""
    done = threading.Event()
    metrics = Path(config.run.output_dir) / "metrics.jsonl"
    killer = threading.Thread(target=kill_at_step, args=(worker, metrics, *moment, done))
    killer.start()
    try:
        yield
    finally:
        done.set()
        killer.join()


def test_on_two_threads(tmp_path: Path) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole, cut = exact_recipe(tmp_path / "whole"), exact_recipe(tmp_path / "cut")
        train_from_config(whole)
        for target in (12, 28, 48):
            train_from_config(cut, resume=True, max_steps=target)
    finally:
        torch.set_num_threads(num_threads)
    assert newest(whole).environment["threads"] == 2
    assert_identical(cut, whole)


def test_micro_batch_halved_on_resume(tmp_path: Path) -> None:
    whole = exact_recipe(tmp_path / "whole", **{"model.dropout": 0.0})
    train_from_config(whole)
    halved = exact_recipe(tmp_path / "halved", **{"model.dropout": 0.0})
    train_from_config(halved, max_steps=20)
    halved = halved.override({"data.micro_batch_size": 2})
    train_from_config(halved, resume=True)
    for a, b in zip(metrics(whole), metrics(halved), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        assert (a["samples"], a["tokens"], a["lr"]) == (b["samples"], b["tokens"], b["lr"])


def test_tied_weights_and_the_learning_rate_after_a_resume(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=12)
    with build_runtime(config, resume=True) as runtime:
        state = runtime.state
        storages = {
            name: p.data_ptr() for name, p in state.model.named_parameters(remove_duplicate=False)
        }
        assert len(set(storages.values())) < len(storages), "nothing is tied"
        assert all(group["lr"] == state.schedule.lr for group in state.optimizer.param_groups)
        assert state.schedule.last_epoch == state.step == 12


def test_global_random_draws_between_build_and_fit_change_nothing(
    uninterrupted: SpeedtronicConfig, tmp_path: Path
) -> None:
    config = exact_recipe(tmp_path)
    for target in (24, 48):
        with build_runtime(config, resume=True) as runtime:
            torch.rand(3), random.random(), np.random.rand()
            runtime.trainer.fit(target)
    assert_identical(config, uninterrupted)
