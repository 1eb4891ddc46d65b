"""A fact of the wrong type or range is damage with a name, whatever the digests say."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.checkpoint import CheckpointStore, layout, open_storage, survey
from speedtronic.checkpoint.candidates import candidates
from speedtronic.checkpoint.contents import validate_facts
from speedtronic.checkpoint.digest import bytes_digest
from speedtronic.checkpoint.records import FileEntry, Manifest
from speedtronic.errors import CorruptError, NoValidCheckpointError, UnsupportedFormatError
from tests.tiny import tree
from tests.unit.checkpoint.states import open_store, selected_step, state_at

Set = tuple[str, Any]


def whole() -> dict[str, Any]:
    return copy.deepcopy({**state_at(4), "run_id": "mine"})


def changed(state: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`state` with what lies at `path`, such as "rng.python.words", replaced; `...` deletes it."""
    *parents, last = path.split(".")
    inner: Any = state
    for key in parents:
        inner = inner[int(key) if key.isdigit() else key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value(inner[last]) if callable(value) else value
    return state


def at(index: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A tensor with one of its values replaced."""

    def change(words: torch.Tensor) -> torch.Tensor:
        words[index] = value
        return words

    return change


NAN, INFINITE = float("nan"), float("inf")
COUNTERS = ["step", "samples", "tokens", "skipped_updates"]
NO_COUNT = ["many", "4", 4.0, NAN, True, -1, None, 2**63, 10**5000, [4], {}, torch.tensor(4)]
WRONG: list[Set] = [
    *((key, value) for key in COUNTERS for value in NO_COUNT),
    *((f"data.{key}", value) for key in ("samples", "epoch") for value in ("4", 4.0, True, -1)),
    *((f"scheduler.{key}", v) for key in ("last_epoch", "max_steps") for v in ("4", 4.0, True, -1)),
    *(("loss", value) for value in ("1.5", NAN, INFINITE, True, [1.5], torch.tensor(1.5))),
    *(("val_loss", value) for value in ("1.5", [1.5], True, torch.tensor(1.5))),
    *(("validated_at", value) for value in ("4", 4.0, True, -1)),
    *(("history", value) for value in ("x", {}, None, ["x"], [[1]], [{1: 2}], [{"a": {4}}])),
    ("history", [{"a": torch.ones(1)}]),
    ("history", [{"a": 10**5000}]),
    ("history", [{"a": "\ud800"}]),
    *(("environment", value) for value in ("x", [], None, {1: 2}, {"a": torch.ones(1)})),
    *(("config", value) for value in ("x", [], None, {1: 2}, {"a": torch.ones(1)})),
    ("precision", "fp32"),
    ("data_fingerprint", 7),
    ("coordinator", {}),
    ("run_id", 7),
    ("run_id", "../x"),
    ("format_version", "1"),
    ("format_version", True),
    ("format_version", 0),
    *(("model", value) for value in ("x", [], None, {1: torch.ones(1)})),
    *(("modes", value) for value in ("x", [], None, {}, {"": 1}, {"": "yes"}, {"": None})),
    ("modes", {"a": True}),
    ("modes", {"": True, "block.0": True}),
    ("modes", {"": True, 0: True}),
    *(("optimizer", value) for value in ("x", [], None, {}, {"state": {}}, {"parts": {}})),
    ("optimizer.state", []),
    ("optimizer.state", {"0": {}}),
    ("optimizer.state", {1: {}}),
    ("optimizer.state", {0: []}),
    *(("optimizer.state", {0: {"step": x}}) for x in ("4", None, True, NAN, -1, 3.5)),
    ("optimizer.state", {0: {"step": torch.tensor([1.0, 2.0])}}),
    ("optimizer.param_groups", {}),
    ("optimizer.param_groups", [{}]),
    ("optimizer.param_groups", [{"params": [0, 0]}]),
    ("optimizer.param_groups", [{"params": ["0"]}]),
    ("optimizer.inherited", {"frozen": "all"}),
    ("not_finite", {"mask": 1}),
    ("module_state", None),
    ("module_state", {"requires_grad": {"a": 1}}),
    ("module_state", {"replaced": ["a"]}),
    ("module_state", {"attributes": {"a": {"set": {}}}}),
    ("scheduler", []),
    ("scheduler.base_lrs", 1e-3),
    ("scheduler.base_lrs", ["1e-3"]),
    ("scheduler.base_lrs", [NAN]),
    ("scaler", "x"),
    ("scaler", {"scale": "x"}),
    ("data", []),
    ("data.shuffle", 1),
    ("data.seed", "7"),
    ("data.seed", True),
    ("data.index", 2),
    ("data.num_samples", 4.0),
    ("data.epoch_samples", 0),
    ("rng", []),
    ("rng.python", None),
    ("rng.python.version", 2),
    ("rng.python.gauss", "x"),
    ("rng.python.gauss", NAN),
    ("rng.numpy.name", "PCG64"),
    *(("rng.numpy.position", value) for value in (-1, 625, 4.0, True)),
    *(("rng.numpy.has_gauss", value) for value in (2, True, None)),
    ("rng.numpy.gauss", None),
    *(
        (f"rng.{kind}.words", value)
        for kind in ("python", "numpy")
        for value in (
            None,
            [1, 2],
            torch.ones(3, dtype=torch.int64),
            lambda words: words.float(),
            lambda words: words.int(),
            lambda words: words[None],
            at(7, -1),
            at(7, 2**32),
        )
    ),
    ("rng.python.words", at(-1, 625)),
    ("rng.torch", None),
    ("rng.torch", lambda words: words[:-1]),
    ("rng.torch", lambda words: words.int()),
    ("rng.torch", lambda words: torch.zeros_like(words)),
    ("rng.cuda", torch.ones(16, dtype=torch.uint8)),
    ("rng.cuda", [torch.ones(16)]),
    ("rng.mps", [1]),
    *(
        (key, ...)
        for key in (*COUNTERS, "model", "modes", "optimizer", "scheduler", "scaler", "loss", "data",
        "data.samples", "rng", "rng.python", "rng.numpy", "rng.torch", "rng.numpy.words", "config",
        "run_id", "format_version")
    ),
]  # fmt: skip


def test_a_whole_one_is_right() -> None:
    validate_facts(whole())


@pytest.mark.parametrize(("path", "value"), WRONG, ids=map(str, range(len(WRONG))))
def test_a_wrong_fact_is_named(path: str, value: Any) -> None:
    with pytest.raises(CorruptError) as raised:
        validate_facts(changed(whole(), path, value))
    said = str(raised.value)
    assert said.startswith(f"payload is damaged: {path.partition('.')[0]}")
    assert "\n" not in said
    assert len(said) < 300


RIGHT: list[Set] = [
    ("scaler", {}),
    (
        "scaler",
        {
            "scale": 65536.0,
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": 2000,
            "_growth_tracker": 0,
        },
    ),
    ("loss", None),
    ("val_loss", None),
    ("val_loss", NAN),  # of a validation before the last one saved
    ("validated_at", 2),
    ("history", [{"step": 2, "changed": "optimizer.lr", "stored": [1, None], "current": 2.5}]),
    ("history", ...),
    ("environment", {"torch": "2.0", "deterministic": False}),
    ("optimizer", {"parts": [{"state": {}, "param_groups": [{"params": [0, 1]}]}]}),
    ("optimizer.state", {}),
    ("optimizer.inherited", {"frozen": ["a.weight"]}),
    ("data", {"samples": 16, "epoch": 1, "index": 4, "begun": 0, "seed": 7, "source": b"x"}),
    ("rng.python.gauss", 0.5),
    ("rng.cuda", [torch.ones(16, dtype=torch.uint8)]),
    ("rng.mps", torch.ones(44, dtype=torch.uint8)),
    ("a_key_of_a_later_version", {"x": 1}),
]


@pytest.mark.parametrize(("path", "value"), RIGHT)
def test_what_a_run_writes_is_right(path: str, value: Any) -> None:
    state = whole()
    if path in ("history", "optimizer.inherited") or path not in state:
        state.setdefault(path, None)
    validate_facts(changed(state, path, value))


def test_a_newer_format_is_no_damage() -> None:
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        validate_facts(changed(whole(), "format_version", 2))


# --- in a store ---


def with_digests(root: Path, step: int, path: str, value: Any) -> None:
    """Change a fact in the payload of `step`, and let its manifest vouch for it."""
    file, note = root / layout.payload_name(step), root / layout.manifest_name(step)
    state = changed(torch.load(file, weights_only=True), path, value)
    torch.save(state, file)
    content = file.read_bytes()
    entry = FileEntry(name=file.name, size_bytes=len(content), digest=bytes_digest(content))
    before = Manifest.from_file(note.read_bytes(), step)
    note.write_bytes(before.model_copy(update={"files": [entry]}).to_bytes())


IN_A_STORE: list[Set] = [
    ("samples", "many"),
    ("step", 4.0),
    ("tokens", 257),
    ("run_id", "another"),
    ("loss", 1.25),
    ("scheduler.last_epoch", 3),
    ("data.samples", 12),
    ("rng.python.words", at(7, -1)),
]


@pytest.mark.parametrize(("path", "value"), IN_A_STORE)
def test_everything_that_loads_refuses_it(tmp_path: Path, path: str, value: Any) -> None:
    store = open_store(tmp_path)
    for step in (2, 4):
        store.save(state_at(step))
    with_digests(tmp_path, 4, path, value)
    before = tree(tmp_path)
    with pytest.raises(NoValidCheckpointError, match="payload is damaged: "):
        CheckpointStore(open_storage(str(tmp_path)), keep_last=None).load_step(4)
    with pytest.raises(CorruptError, match="payload is damaged: "):
        next(candidates(open_storage(str(tmp_path)))).load()
    found = survey(open_storage(str(tmp_path)))
    assert (found.checkpoints[0].status, found.selected) == ("corrupt", 2)
    assert tree(tmp_path) == before
    assert selected_step(tmp_path) == 2
    assert (tmp_path / "quarantine" / layout.payload_name(4)).exists()


def test_nothing_is_moved_when_it_is_the_only_one(tmp_path: Path) -> None:
    open_store(tmp_path).save(state_at(2))
    with_digests(tmp_path, 2, "samples", "many")
    before = tree(tmp_path)
    with pytest.raises(NoValidCheckpointError, match=r"samples: .* found 'many'"):
        open_store(tmp_path).select()
    assert tree(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == sorted(before)  # noqa: PTH208
