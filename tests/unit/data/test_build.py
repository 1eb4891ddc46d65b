from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.config import SpeedtronicConfig
from speedtronic.data import SyntheticSource, TextSource, build_loader
from speedtronic.data.build import build_source
from speedtronic.errors import DataError


def make_config(**data: Any) -> SpeedtronicConfig:
    return SpeedtronicConfig.from_dict(
        {"seed": 5, "model": {"max_seq_len": 16}, "data": {"block_size": 8, **data}}
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "b.txt").write_bytes(b"b" * 50)
    (tmp_path / "a.txt").write_bytes(b"a" * 50)
    return tmp_path


def test_synthetic_without_text() -> None:
    source = build_source(make_config(num_tokens=161, seed=9))
    assert isinstance(source, SyntheticSource)
    assert (len(source), source.vocab_size, source.seed) == (20, 512, 9)


def test_text_where_it_is_given(text: Path) -> None:
    source = build_source(make_config(text_path=f"{text}/*.txt", num_tokens=60))
    assert isinstance(source, TextSource)
    assert source.num_bytes == 60
    assert bytes(source[6]["labels"].tolist()) == b"abbbbbbb"


def test_several_paths(text: Path) -> None:
    source = build_source(make_config(text_path=[f"{text}/b.txt", f"{text}/a.txt"]))
    assert isinstance(source, TextSource)
    assert source.num_bytes == 100


def test_the_loader_has_the_sections_order() -> None:
    loader = build_loader(
        make_config(
            num_tokens=161, micro_batch_size=2, target_batch_size=6, shuffle=True, drop_last=True
        ),
        pin_memory=False,
    )
    assert loader.state_dict() == {
        "samples": 0,
        "num_samples": 20,
        "epoch_samples": 18,
        "epoch": 0,
        "seed": 5,
        "shuffle": True,
    }
    batch = loader.next_batch()
    assert batch["input_ids"].shape == (2, 8)
    source = build_source(make_config(num_tokens=161))
    index = int(loader._order.locate([1])[1][0])  # type: ignore[arg-type]
    assert torch.equal(batch["labels"][1], source[index]["labels"])


@pytest.mark.parametrize(
    ("given", "default", "expected"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_pin_memory_of_the_section_wins(given: bool | None, default: bool, expected: bool) -> None:
    loader = build_loader(make_config(pin_memory=given), pin_memory=default)
    assert loader._pin_memory is expected


def test_workers_and_prefetch_are_handed_on() -> None:
    loader = build_loader(make_config(num_workers=2, prefetch_factor=3), pin_memory=False)
    assert (loader._num_workers, loader._prefetch_factor) == (2, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"text_path": "/no/such/*.txt"}, r"data\.text_path: '/no/such/\*\.txt' matches no file"),
        ({"num_tokens": 8}, r"data\.num_tokens: 8 is less than the 9 tokens"),
        ({"num_tokens": 17, "target_batch_size": 4}, r"the data has 2, .*_size is 4"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_loader(make_config(**data), pin_memory=False)
