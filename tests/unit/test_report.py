"""The record of a run: what is in it, and how it goes on over several flow runs."""

import json
import logging
from pathlib import Path

import pytest

from speedtronic.checkpoint import Pointer
from speedtronic.report import MAX_ROWS, ChunkReport, RunReport, write_report

KILLED = "worker 7 was killed by SIGKILL (killed from outside, or out of memory: see dmesg)"


def pointer(step: int, run_id: str = "a") -> Pointer:
    return Pointer(
        step=step,
        file=f"step_{step:012d}.pt",
        digest="xxh3_128:" + "0" * 32,
        state_digest="state1:" + "0" * 32,
        run_id=run_id,
        samples=8 * step,
        tokens=256 * step,
    )


def report(start: int, target: int, run_id: str = "a") -> RunReport:
    chunk = ChunkReport(start, target, target, 2, [KILLED], 3.25, 2.5)
    return RunReport(
        name="poem",
        output_dir="runs/poem",
        start_step=start,
        target_step=target,
        trained_to=target,
        pointer=pointer(target, run_id),
        chunks=[chunk],
        restores=[start],
    )


def test_signals_are_named() -> None:
    assert ChunkReport(0, 4, failures=[KILLED, "no new step", KILLED]).signals == ["SIGKILL"] * 2


def test_the_files_say_the_same(tmp_path: Path) -> None:
    write_report(report(0, 40), tmp_path)
    record = json.loads((tmp_path / "report.json").read_text())
    assert (record["run_id"], record["restarts"]) == ("a", [])
    assert record["chunks"][0]["signals"] == ["SIGKILL"]
    text = (tmp_path / "report.md").read_text()
    assert "# poem: step 40 of 40" in text
    assert "| 0-40 | 40 | 2 | SIGKILL | 3.2 | 2.5000 | 0.000 s |" in text
    assert KILLED in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


def test_a_later_flow_run_goes_on_with_it(tmp_path: Path) -> None:
    write_report(report(0, 40), tmp_path)
    later = report(40, 80)
    later.take_up(tmp_path)
    record = later.to_dict()
    assert [chunk["target"] for chunk in record["chunks"]] == [40, 80]
    assert (record["restores"], record["restarts"]) == ([0, 40], [40])
    assert later.attempts == 2, "of this flow run"


def test_that_of_another_run_is_left_out(tmp_path: Path) -> None:
    write_report(report(0, 40, "other"), tmp_path)
    later = report(40, 80)
    later.take_up(tmp_path)
    assert later.all_chunks == later.chunks


@pytest.mark.parametrize("content", ["", "{", "[]", '{"chunks": 1}', '{"chunks": [], "run_id": 1}'])
def test_one_that_cannot_be_read_is_told_of(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "report.json").write_text(content)
    later = report(40, 80)
    with caplog.at_level(logging.WARNING):
        later.take_up(tmp_path)
    assert later.all_chunks == later.chunks
    assert "tells nothing of earlier flow runs" in caplog.text


def test_a_table_for_people_ends_somewhere() -> None:
    long = report(0, 4)
    long.chunks = [ChunkReport(step, step + 1) for step in range(MAX_ROWS + 5)]
    assert [row["steps"] for row in long.rows()][-1] == f"{MAX_ROWS + 4}-{MAX_ROWS + 5}"
    assert len(long.rows()) == MAX_ROWS


def test_the_store_knows_more_than_a_flow_that_was_ended() -> None:
    ended = report(0, 40)
    ended.take_from_store([pointer(53), pointer(40)])
    assert (ended.trained_to, ended.samples) == (53, 8 * 53)
    assert [c["step"] for c in ended.checkpoints] == [53, 40]
    ended.trained_to = 60  # off the interval, and not saved
    ended.take_from_store([pointer(53)])
    assert ended.trained_to == 60
