"""Metrics as JSON lines: after any interruption, those of an uninterrupted run."""

import json
import os
from pathlib import Path

import pytest

from speedtronic.errors import OutputDirError
from speedtronic.training.metrics import JsonLines, read_events


def write(path: Path, *steps: int) -> None:
    lines = JsonLines(path)
    for step in steps:
        lines.on_event("train_step", {"step": step, "loss": step / 2})
    lines.close()


def rewound(path: Path, step: int) -> list[int]:
    """The steps left after `rewind(step)`."""
    lines = JsonLines(path)
    lines.rewind(step)
    lines.close()
    return [event["step"] for event in read_events(path, "train_step")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_a_line_is_a_json_object_and_readable_at_once(path: Path) -> None:
    lines = JsonLines(path)
    lines.on_event("train_step", {"step": 1, "loss": 2.5})
    assert path.read_text() == '{"event": "train_step", "step": 1, "loss": 2.5}\n'
    lines.close()


@pytest.mark.parametrize(("step", "left"), [(0, []), (1, [1]), (3, [1, 2, 3]), (9, [1, 2, 3])])
def test_rewinding_drops_later_lines(path: Path, step: int, left: list[int]) -> None:
    write(path, 1, 2, 3)
    assert rewound(path, step) == left


def test_what_is_written_after_a_rewind_follows_without_a_gap(path: Path) -> None:
    write(path, 1, 2, 3, 4)
    lines = JsonLines(path)
    lines.rewind(2)
    lines.on_event("train_step", {"step": 3, "loss": 0.0})
    lines.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("torn", ["{", '{"event": "train_step", "st', '{"event": "x", "step": 1}'])
def test_a_torn_last_line_is_dropped_even_if_it_reads_well(path: Path, torn: str) -> None:
    write(path, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + torn.encode())
    assert rewound(path, 5) == [1, 2]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "foreign", [b"\n", b"[]\n", b"7\n", b"{}\n", b"\xff\n", b"\0\0\0\n", b'{"step": null}\n']
)
def test_from_a_line_that_is_not_ours_on_nothing_is_kept(path: Path, foreign: bytes) -> None:
    write(path, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + foreign + whole)
    assert rewound(path, 5) == [1, 2]


def test_duplicates_of_an_older_crash_go_with_the_steps_they_repeat(path: Path) -> None:
    write(path, 1, 2, 3, 2, 3)
    assert rewound(path, 2) == [1, 2]


def test_rewinding_to_the_end_does_not_touch_the_file(path: Path) -> None:
    write(path, 1, 2)
    os.utime(path, ns=(1, 1))
    assert rewound(path, 2) == [1, 2]
    assert path.stat().st_mtime_ns == 1


def test_flushing_is_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    lines = JsonLines(path)
    lines.sync()
    lines.close()
    assert len(synced) == 1


def test_reading_skips_other_events_and_a_line_still_being_written(path: Path) -> None:
    write(path, 1, 2)
    with path.open("a") as file:
        file.write('{"event": "other", "step": 2}\n{"event": "train_step", "step": 3')
    assert [event["step"] for event in read_events(path, "train_step")] == [1, 2]
    assert read_events(path.parent / "missing", "train_step") == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputDirError, match=r"file/metrics\.jsonl"):
        JsonLines(tmp_path / "file" / "metrics.jsonl")
