"""Each counter is held against the others; what is no contradiction is none."""

from typing import Any

import pytest
import torch

from speedtronic.checkpoint.agreement import disagreements
from speedtronic.checkpoint.records import FileEntry, Manifest
from tests.facts import facts_at

MANIFEST = Manifest(
    format_version=1,
    run_id="r",
    step=6,
    samples=32,
    tokens=512,
    skipped_updates=2,
    loss=1.0,
    files=[FileEntry(name="step_000000000006.pt", size_bytes=1, digest="xxh3_128:" + "0" * 32)],
    state_digest="state1:" + "0" * 32,
    config_fingerprint="",
    created_at="",
)
STATE: dict[str, Any] = {
    **facts_at(6),
    "run_id": "r",
    "samples": 32,
    "tokens": 512,
    "skipped_updates": 2,
    "loss": 1.0,
    "data": {"samples": 32, "shuffle": True},
    "config": {"data": {"target_batch_size": 4}},
}


def updates(*made: float) -> dict[str, Any]:
    """The state of an optimizer that has made so many of each parameter."""
    return {"optimizer": {"state": {i: {"step": torch.tensor(x)} for i, x in enumerate(made)}}}


def test_a_whole_one_agrees() -> None:
    assert disagreements(MANIFEST, STATE) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": 511}, "tokens: 511 in the payload, 512 in the manifest"),
        ({"loss": 2.0}, "loss: 2.0 in the payload, 1.0 in the manifest"),
        ({"run_id": "s"}, "run_id: s in the payload, r in the manifest"),
        ({"scheduler": {"last_epoch": 5}}, "the schedule is at step 5, the payload at 6"),
        (updates(5.0), "the optimizer has made 5 updates, the payload is at step 6"),
        (updates(6.0, 7.0), "the optimizer has made 6, 7 updates, the payload"),
        ({"data": {"samples": 28}}, "the data are at sample 28, the payload at 32"),
        ({"config": {"data": {"target_batch_size": 5}}}, "expected (step + skipped updates) x"),
        ({"validated_at": 7}, "validated at step 7, the payload is at 6"),
    ],
)
def test_each_contradiction_is_named(change: dict[str, Any], said: str) -> None:
    [found] = disagreements(MANIFEST, {**STATE, **change})
    assert said in found


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": {"state": {}}},  # an optimizer that does not count
        updates(2.0, 6.0),  # parameters without a gradient in some updates
        {"config": {}},
        {"config": {"data": None}},
        {
            "config": {"data": {"target_batch_size": 8}},
            "history": [{"step": 4, "changed": "data.target_batch_size"}],
        },
        {
            "config": {"data": {"target_batch_size": 8}},
            "history": [{"step": 4, "taken_up_from": "Speedtronic 2.0"}],
        },
    ],
)
def test_what_may_be_is_no_contradiction(change: dict[str, Any]) -> None:
    assert disagreements(MANIFEST, {**STATE, **change}) == []
