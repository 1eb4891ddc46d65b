"""Each counter is held against the others; what is no contradiction is none."""

from dataclasses import replace
from typing import Any

import pytest

from speedtronic.checkpoint.records import FileEntry, Manifest
from speedtronic.recovery.checklist import repeated
from speedtronic.recovery.counters import disagreements
from speedtronic.recovery.loading import Facts

DIGEST = "state1:" + "0" * 32
MANIFEST = Manifest(
    format_version=1,
    run_id="r",
    step=6,
    samples=32,
    tokens=512,
    skipped_updates=2,
    loss=1.0,
    files=[FileEntry(name="step_000000000006.pt", size_bytes=1, digest="xxh3_128:" + "0" * 32)],
    state_digest=DIGEST,
    config_fingerprint="",
    created_at="",
)
FACTS = Facts(
    step=6,
    samples=32,
    tokens=512,
    skipped_updates=2,
    loss=1.0,
    scheduler_step=6,
    optimizer_steps=[6.0],
    missing=[],
    data={"samples": 32, "shuffle": True},
    data_fingerprint=None,
    config={"data": {"target_batch_size": 4}},
    history=[],
    not_finite=[],
    state_digest=DIGEST,
    seconds=0.1,
)


def test_a_whole_one_agrees() -> None:
    assert disagreements(MANIFEST, FACTS) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": 511}, "tokens: 511 in the payload, 512 in the manifest"),
        ({"scheduler_step": 5}, "the schedule is at step 5, the payload at 6"),
        ({"scheduler_step": None}, "the schedule is at step None, the payload at 6"),
        ({"optimizer_steps": [5.0]}, "the optimizer has made 5 updates, the payload is at step 6"),
        ({"optimizer_steps": [6.0, 7.0]}, "the optimizer has made 6, 7 updates, the payload"),
        ({"data": {"samples": 28}}, "the data are at sample 28, the payload at 32"),
        ({"config": {"data": {"target_batch_size": 5}}}, "expected (step + skipped updates) x"),
        ({"not_finite": ["model/a"]}, "NaN or infinity in model/a"),
        ({"state_digest": "state1:f"}, "state1:f was loaded, the manifest has"),
        ({"missing": ["rng"]}, "the payload has no 'rng'"),
    ],
)
def test_each_contradiction_is_named(change: dict[str, Any], said: str) -> None:
    [found] = disagreements(MANIFEST, replace(FACTS, **change))
    assert said in found


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer_steps": []},  # an optimizer that does not count
        {"optimizer_steps": [2.0, 6.0]},  # parameters without a gradient in some updates
        {"config": {}},
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
    assert disagreements(MANIFEST, replace(FACTS, **change)) == []


def test_how_much_is_repeated() -> None:
    assert repeated(FACTS.data).startswith("0 samples: the order is a function of the seed")
    stream = {"samples": 32, "index": 2, "begun": 8, "own_state": True}
    assert "a state of their own, at sample 32" in repeated(stream)
    assert "up to 24 are read again" in repeated({**stream, "own_state": False})
