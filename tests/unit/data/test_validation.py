import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.data import validation_batches
from speedtronic.errors import ConfigError, DataError


def make_config(data: dict[str, Any] | None = None, **validation: Any) -> SpeedtronicConfig:
    return SpeedtronicConfig.from_dict(
        {
            "model": {"vocab_size": 256, "max_seq_len": 4},
            "data": {"micro_batch_size": 4, "target_batch_size": 8, **(data or {})},
            "validation": {"every_steps": 1, **validation},
        }
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "held-out.txt"
    path.write_bytes(bytes(range(97, 123)))
    return path


def test_text_comes_whole_and_in_order(text: Path) -> None:
    batches = list(validation_batches(make_config(text_path=str(text)))())
    assert [batch["input_ids"].shape for batch in batches] == [(4, 4), (2, 4)]
    labels = torch.cat([batch["labels"] for batch in batches]).flatten()
    assert bytes(labels.tolist()) == bytes(range(98, 122))


def test_text_by_the_tokenizer(text: Path) -> None:
    text.write_text("a bb ccc dddd eeeee", encoding="utf-8")
    config = make_config(
        {"text_path": str(text), "tokenizer": "tests.own_parts:words"}, text_path=str(text)
    )
    (batch,) = validation_batches(config)()
    assert batch["labels"].tolist() == [[2, 3, 4, 5]]


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (5, 5), (6, 6), (100, 6), (None, 6)])
def test_a_dataset_gives_the_same_each_time(most: int | None, expected: int) -> None:
    config = make_config(
        {"shuffle": True, "num_workers": 2},
        dataset="tests.own_parts:augmented",
        max_batches=most,
    )
    batches = validation_batches(config)
    first, second = list(batches()), list(batches())
    assert len(first) == expected
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one["labels"], other["labels"])
    if expected == 6:
        assert len(first[-1]["labels"]) == 2


def test_random_streams_are_left_alone() -> None:
    before = (torch.get_rng_state(), pickle.dumps(np.random.get_state()), random.getstate())
    list(validation_batches(make_config(dataset="tests.own_parts:augmented"))())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert pickle.dumps(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


def test_what_cannot_be_validated_on_is_refused(text: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    short = tmp_path / "short"
    short.write_bytes(b"abc")
    args = {"num_items": 0}
    for config, error, message in [
        (make_config(text_path="/no/such"), DataError, r"validation\.text_path: '/no/such' match"),
        (make_config(text_path=str(empty)), DataError, r"validation\.text_path: nothing to read"),
        (make_config(text_path=str(short)), DataError, r"validation\.text_path: 3 bytes"),
        (
            make_config(dataset="tests.own_parts:augmented", dataset_args=args),
            DataError,
            r"validation\.dataset: the Augmented has no items",
        ),
        (
            make_config(dataset="tests.own_parts:stream"),
            ConfigError,
            r"validation\.dataset is .*; it returned a Stream, expected a map-style dataset",
        ),
        (make_config(dataset="tests.own_parts:no"), ConfigError, r"validation\.dataset is .*no"),
        (
            make_config(text_path=str(text)).override({"model.vocab_size": 100}),
            DataError,
            r"validation\.text_path is read as bytes; model\.vocab_size is 100",
        ),
    ]:
        with pytest.raises(error, match=message):
            validation_batches(config)
