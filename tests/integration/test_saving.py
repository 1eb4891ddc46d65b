"""Saves in the background: what a failed one does to a run, and that they change nothing in it."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.errors import NonFiniteError, StorageError, StorageFullError
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.storage.local import LocalStorage
from speedtronic.training.metrics import read_events
from tests.recipes import exact_recipe, load, newest

BOTH = pytest.mark.parametrize("background", [True, False], ids=["background", "at once"])


class Disk:
    """Fails to make a payload durable from the save of `step` on, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step: int | None = None
        self.code = errno.EIO
        sync = LocalStorage.sync

        def failing(storage: LocalStorage, file: Any) -> None:
            if self.step is not None and f"step_{self.step:012d}.pt" in file.name:
                with storage._errors("write", file.name):
                    raise OSError(self.code, "made up")
            sync(storage, file)

        monkeypatch.setattr(LocalStorage, "sync", failing)


@BOTH
@pytest.mark.parametrize(
    ("step", "target"), [(8, 48), (48, 48)], ids=["in the middle", "at the end"]
)
def test_a_failed_save_ends_the_run_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool, step: int, target: int
) -> None:
    disk = Disk(monkeypatch)
    config = exact_recipe(tmp_path / "run", **{"checkpoint.async_save": background})
    disk.step = step
    with pytest.raises(StorageError, match="cannot write"):
        train_from_config(config)
    assert newest(config).step == step - 4
    assert not list(Path(config.checkpoint_dir).glob(".step*tmp*")), "a temporary was left"
    disk.step = None
    assert train_from_config(config, resume=True).steps == target
    whole = exact_recipe(tmp_path / "whole")
    train_from_config(whole)
    assert newest(config).state_digest == newest(whole).state_digest


def test_a_full_disk_says_what_it_needed_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.step, disk.code = 8, errno.ENOSPC
    config = exact_recipe(tmp_path)
    with pytest.raises(StorageFullError, match=r"needs .* MiB, found .* MiB; make room") as caught:
        train_from_config(config)
    assert caught.value.needed_bytes == newest(config).payload.size_bytes
    assert caught.value.free_bytes is not None


def test_a_failure_that_nobody_asked_for_surfaces_on_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.step = 4
    runtime = build_runtime(exact_recipe(tmp_path))
    runtime.train(3)
    assert runtime._saver is not None
    runtime._saver.save({**runtime.state.state_dict(), "step": 4})
    with pytest.raises(StorageError, match="cannot write"):
        runtime.close()
    build_runtime(exact_recipe(tmp_path), resume=True).close()  # the lock was given back


def test_another_error_is_not_hidden_by_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(monkeypatch)
    disk.step = 4
    with (
        pytest.raises(KeyError, match="of the caller"),
        build_runtime(exact_recipe(tmp_path)) as runtime,
    ):
        assert runtime._saver is not None
        runtime._saver.save({**runtime.state.state_dict(), "step": 4})
        raise KeyError("of the caller")
    assert "a save failed as well: cannot write" in caplog.text


@BOTH
def test_what_is_saved_is_the_state_at_the_step(tmp_path: Path, background: bool) -> None:
    """Training changes every weight while the save before is still being written."""
    config = exact_recipe(
        tmp_path, **{"checkpoint.every_steps": 1, "checkpoint.async_save": background}
    )
    seen = {}

    def look(step: int) -> None:
        seen[step] = {name: x.clone() for name, x in runtime.state.model.state_dict().items()}

    with build_runtime(config.override({"checkpoint.keep_last": None}), on_step=look) as runtime:
        runtime.train(6)
        for step in range(1, 7):
            saved = runtime.store.load_step(step).state["model"]  # type: ignore[union-attr]
            assert all(torch.equal(saved[name], x) for name, x in seen[step].items())


@pytest.mark.parametrize("threads", [1, 2])
def test_the_state_digest_does_not_depend_on_how_it_is_saved(tmp_path: Path, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        digests = set()
        for background in (True, False):
            config = exact_recipe(
                tmp_path / str(background), **{"checkpoint.async_save": background}
            )
            train_from_config(config, max_steps=8)
            digests.add(newest(config).state_digest)
            with build_runtime(config, resume=True) as runtime:
                assert runtime.store is not None
                again = runtime.store.save({**load(config)})
                digests.add(again.state_digest)
        assert len(digests) == 1
    finally:
        torch.set_num_threads(before)


@BOTH
def test_what_a_save_cost_is_told(tmp_path: Path, background: bool) -> None:
    config = exact_recipe(tmp_path, **{"checkpoint.async_save": background})
    result = train_from_config(config, max_steps=12)
    lines = read_events(tmp_path / "metrics.jsonl", "checkpoint_saved")
    assert [line["saved_step"] for line in lines] == [4, 8, 12]
    for line in lines:
        assert line["save_stall_s"] > 0
        assert line["save_bytes"] == newest(config).payload.size_bytes
        assert (line["save_stall_s"] == line["save_durable_s"]) is not background
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()]
    assert steps == sorted(steps)
    assert result.metrics["saves"] == 3
    assert result.metrics["save_stall_s"] > 0


@BOTH
def test_a_weight_that_is_not_finite_ends_the_run_at_the_next_opportunity(
    tmp_path: Path, background: bool
) -> None:
    config = exact_recipe(tmp_path, **{"checkpoint.async_save": background})
    train_from_config(config, max_steps=4)
    with build_runtime(config, resume=True) as runtime:
        state = runtime.state.state_dict()
        name = next(iter(state["model"]))
        state["model"][name] = torch.full_like(state["model"][name], float("inf"))
        assert runtime._saver is not None
        with pytest.raises(NonFiniteError, match=f"^{name} is not finite after step 4"):
            runtime._saver.save(state)
            runtime._saver.wait()
    assert newest(config).step == 4
