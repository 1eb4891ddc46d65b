"""Files that may be somebody's work and cannot be resumed from: no command starts over them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from speedtronic.checkpoint.layout import manifest_name, payload_name
from speedtronic.cli import main
from speedtronic.recovery import run_checklist
from speedtronic.runtime import train_from_config
from tests.tiny import names, tiny_config, tiny_file, tree


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 2 and 4, and its configuration."""
    train_from_config(tiny_config(tmp_path / "run"), max_steps=4)
    return tmp_path / "run"


def only_payloads(checkpoints: Path) -> None:
    for path in checkpoints.glob("*.json"):
        path.unlink()


def linked(checkpoints: Path) -> None:
    annex = checkpoints.parent.parent / "annex"
    annex.mkdir()
    for name in [*names(checkpoints)]:
        (checkpoints / name).rename(annex / name)
        if name.startswith("step_"):
            (checkpoints / name).symlink_to(annex / name)


def dangling(checkpoints: Path) -> None:
    linked(checkpoints)
    (checkpoints.parent.parent / "annex").rename(checkpoints.parent.parent / "unmounted")


def newest_linked(checkpoints: Path) -> None:
    """Only what was archived: a resume must not step back past it."""
    annex = checkpoints.parent.parent / "annex"
    annex.mkdir()
    (checkpoints / payload_name(4)).rename(annex / "4.pt")
    (checkpoints / payload_name(4)).symlink_to(annex / "4.pt")


def linked_manifest_only(checkpoints: Path) -> None:
    only_payloads(checkpoints)
    (checkpoints / manifest_name(2)).symlink_to("nowhere.json")


LOST: dict[str, tuple[Callable[[Path], None], str]] = {
    "only payloads": (only_payloads, payload_name(2)),
    "all links": (linked, payload_name(4)),
    "all links, dangling": (dangling, "which is not there"),
    "the newest is a link": (newest_linked, "is a link to "),
    "a manifest is a dangling link": (linked_manifest_only, manifest_name(2)),
}


@pytest.mark.parametrize("name", LOST)
def test_no_command_starts_over_it(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lose, said = LOST[name]
    lose(run / "checkpoints")
    config = tiny_file(run.parent / "c.yaml", run)
    before = tree(run.parent, without=(".lock",))
    for command in (
        ["train", "--config", config, "--resume"],
        ["train", "--config", config],
        ["verify", str(run), "--json"],
        ["recover", str(run), "--json"],
    ):
        assert main(command) in (1, 2)
        captured = capsys.readouterr()
        shown = captured.out + captured.err
        assert "Traceback" not in shown
        assert said in shown or command == ["train", "--config", config]
        assert tree(run.parent, without=(".lock",)) == before
    main(["inspect", str(run)])
    assert "a resume would start from: nothing" in capsys.readouterr().out


def test_a_first_save_cut_short_begins_anew(run: Path) -> None:
    only_payloads(run / "checkpoints")
    (run / "checkpoints" / payload_name(4)).unlink()
    report = run_checklist(str(run))
    assert report.healthy
    assert "a resume moves it to quarantine and starts at step 0" in " ".join(report.actions())
    result = train_from_config(tiny_config(run), resume=True)
    assert result.metrics["updates"] == 8
    assert payload_name(2) in names(run / "checkpoints" / "quarantine")


def test_a_fork_whose_first_save_was_cut_short_begins_anew(run: Path, tmp_path: Path) -> None:
    fork = tiny_config(tmp_path / "fork")
    forked_from = (str(run / "checkpoints"), 4)
    train_from_config(fork, fork_from=forked_from, max_steps=4)  # it saves where it begins
    only_payloads(tmp_path / "fork" / "checkpoints")
    result = train_from_config(fork, resume=True, fork_from=forked_from)
    assert result.metrics["updates"] == 4
    assert names(tmp_path / "fork" / "checkpoints" / "quarantine") == [
        payload_name(4),
        f"{payload_name(4)}.reason.json",
    ]
