"""Metrics as JSON lines: after any interruption, those of an uninterrupted run."""

import errno
import json
import os
from pathlib import Path

import pytest

from speedtronic.errors import OutputDirError, StorageError, StorageFullError
from speedtronic.training.metrics import JsonLines, read_events
from tests.tiny import names


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
def test_a_line_that_is_not_ours_stays_and_so_do_those_after_it(path: Path, foreign: bytes) -> None:
    write(path, 1, 2, 3, 4)
    first, second, third, fourth = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + foreign + second + foreign + third + foreign + fourth)
    assert rewound(path, 4) == [1, 2, 3, 4]
    assert rewound(path, 2) == [1, 2]
    assert path.read_bytes() == first + foreign + second + foreign + foreign
    assert names(path.parent) == [path.name]


def test_a_flipped_bit_in_a_step_takes_no_other_line_along(path: Path) -> None:
    write(path, 1, 2, 3, 4)
    path.write_bytes(path.read_bytes().replace(b'"step": 2', b'"step": 6'))
    assert rewound(path, 3) == [1, 3]


def test_a_last_line_of_somebody_else_is_ended_and_stays(path: Path) -> None:
    write(path, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b"a note")
    assert rewound(path, 2) == [1, 2]
    assert path.read_bytes() == whole + b"a note\n"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\0" * 5000, b'{"event": "train_st'])
def test_what_a_crash_leaves_of_a_first_line_is_no_reason_to_refuse(
    path: Path, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    rewound(path, 0)
    write(path, 1)
    assert rewound(path, 1) == [1]


@pytest.mark.parametrize(
    "content",
    [b'{"text": "sample"}\n' * 30, b'{"loss": 1.0, "step": 3}\n', b"no newline", b"\xff" * 2**21],
)
def test_a_file_of_somebody_else_is_refused_and_unchanged(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(OutputDirError, match=r"metrics\.jsonl is there and does not hold metrics"):
        JsonLines(path)
    assert path.read_bytes() == content


def test_a_file_of_ours_with_a_damaged_first_line_is_ours(path: Path) -> None:
    write(path, 1, 2)
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    assert rewound(path, 2) == [2]


def test_another_runs_metrics_are_kept_beside(path: Path) -> None:
    for number in (1, 2):
        lines = JsonLines(path)
        lines.rewind(0)
        lines.on_event("train_step", {"step": 1})
        lines.on_event("checkpoint_saved", {"step": 1})
        lines.close()
        assert len(names(path.parent)) == number
    assert names(path.parent) == ["metrics.jsonl", "metrics.jsonl.before-1"]
    assert rewound(path.with_name("metrics.jsonl.before-1"), 1) == [1]


def test_steps_of_an_attempt_that_saved_nothing_are_dropped(path: Path) -> None:
    write(path, 1, 2)
    assert rewound(path, 0) == []
    assert names(path.parent) == [path.name]


def test_numbers_that_are_not_finite_are_null(path: Path) -> None:
    lines = JsonLines(path)
    nested = {"a": [float("inf"), {"b": (-float("inf"), 1.5)}]}
    lines.on_event("train_step", {"step": 1, "loss": float("nan"), "more": nested})
    lines.close()
    assert path.read_text() == (
        '{"event": "train_step", "step": 1, "loss": null, '
        '"more": {"a": [null, {"b": [null, 1.5]}]}}\n'
    )


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError), (errno.EIO, StorageError),
     (errno.EROFS, StorageError)],
)  # fmt: skip
def test_a_disk_that_refuses_is_named_and_leaves_no_half_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    lines = JsonLines(path)
    lines.on_event("train_step", {"step": 1})
    real, calls = os.write, iter([5, None])

    def refuse(descriptor: int, data: bytes) -> int:
        if (length := next(calls)) is None:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data[:length])

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(kind, match=r"cannot write .*metrics\.jsonl"):
        lines.on_event("train_step", {"step": 2})
    monkeypatch.undo()
    lines.on_event("train_step", {"step": 2})
    lines.close()
    assert rewound(path, 2) == [1, 2]


def test_a_link_is_not_followed(path: Path) -> None:
    victim = path.parent.parent / "victim"
    victim.write_text("precious")
    path.parent.mkdir()
    path.symlink_to(victim)
    with pytest.raises(OutputDirError, match=r"metrics\.jsonl: it is a link"):
        JsonLines(path)
    assert victim.read_text() == "precious"


def test_rewinding_to_the_end_does_not_touch_the_file(path: Path) -> None:
    write(path, 1, 2)
    os.utime(path, ns=(1, 1))
    assert rewound(path, 2) == [1, 2]
    assert path.stat().st_mtime_ns == 1


def test_flushing_is_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    lines = JsonLines(path)
    monkeypatch.setattr(os, "fsync", synced.append)
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
