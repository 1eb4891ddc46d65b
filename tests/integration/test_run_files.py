"""A run's own files, damaged, replaced by something else, or somebody else's: one line of ours,
nothing of anybody's lost, and the run goes on."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import RunLock
from speedtronic.cli import main
from speedtronic.errors import (
    OutputDirError,
    RunExistsError,
    RunLockedError,
    StorageError,
    StorageFullError,
)
from speedtronic.recovery import LoadProcess, RecoveryReport, run_checklist
from speedtronic.run_directory import locate, read_config
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.training.metrics import read_events
from tests.recipes import newest
from tests.tiny import names, tiny_config, tree

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "zeros": lambda content: b"\0" * len(content),
    "half": lambda content: content[: len(content) // 2],
    "not UTF-8": lambda content: content[:20] + b"\xff" + content[21:],
    "not text": lambda content: content[:20] + b"\x01" + content[21:],
    "deep": lambda content: b"[" * 10**4,
}
FILES = ["config.yaml", "run.json", "report.json"]


@pytest.fixture(scope="module")
def loader() -> Any:
    with LoadProcess() as process:
        yield process


@pytest.fixture
def config(tmp_path: Path) -> SpeedtronicConfig:
    """Of a run at step 4 of 8 that keeps its checkpoints elsewhere."""
    apart = {"checkpoint.directory": str(tmp_path / "apart")}
    config = tiny_config(tmp_path / "run", **apart)
    train_from_config(config, max_steps=4)
    record = {"flow_run": None, "run_id": newest(config).run_id, "chunks": [], "restores": [0]}
    listed = [{"step": 4, "file": "step_000000000004.pt"}]
    report = json.dumps(record | {"checkpoints": listed})
    (tmp_path / "run" / "report.json").write_text(report)
    return config


def checked(
    config: SpeedtronicConfig, loader: LoadProcess, given: SpeedtronicConfig | None = None
) -> RecoveryReport:
    return run_checklist(config.run.output_dir, loader=loader, config=given)


def found(report: RecoveryReport, file: str) -> list[tuple[str, str]]:
    return [(f.status, f.found) for f in report.findings if f.path.endswith(file)]


def goes_on(config: SpeedtronicConfig) -> None:
    """From step 4 to the end, with whole metrics."""
    assert train_from_config(config, resume=True).metrics["updates"] == 4
    events = read_events(Path(config.run.output_dir) / "metrics.jsonl", "train_step")
    assert [event["step"] for event in events] == list(range(1, 9))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_damage_is_named_and_the_run_goes_on(
    config: SpeedtronicConfig, loader: LoadProcess, file: str, damage: str
) -> None:
    path = Path(config.run.output_dir) / file
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    before = tree(path.parent)
    report = checked(config, loader)
    assert report.selected == 4, "wherever the checkpoints are"
    [(status, said)] = found(report, file)
    assert status == "warning"
    assert "\n" not in said
    assert tree(path.parent) == before
    goes_on(config)
    assert not [
        f for f in checked(config, loader).findings if f.path.endswith(("yaml", "run.json"))
    ]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
@pytest.mark.parametrize("file", [*FILES, "metrics.jsonl", ".lock"])
def test_what_is_no_regular_file_makes_nobody_wait(
    config: SpeedtronicConfig, loader: LoadProcess, file: str, kind: str, tmp_path: Path
) -> None:
    path = Path(config.run.output_dir) / file
    victim = tmp_path / "victim"
    victim.write_bytes(path.read_bytes())
    path.unlink()
    {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(victim), "folder": Path.mkdir}[kind](
        path
    )  # type: ignore[operator]
    before = victim.read_bytes()
    report = checked(config, loader)
    assert report.selected == 4
    if file in FILES:
        assert kind in found(report, file)[0][1]
    if file == "report.json":  # the flow's affair
        goes_on(config)
    else:
        with pytest.raises(OutputDirError, match=rf"{file}\b.* (is a {kind}|directory)"):
            train_from_config(config, resume=True)
    assert victim.read_bytes() == before


@pytest.mark.parametrize("which", ["config.yaml", "metrics.jsonl", "run.log", "run.json"])
def test_a_link_in_a_new_runs_directory_is_refused_before_anything_is_written(
    tmp_path: Path, which: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / which).symlink_to(tmp_path / "victim")  # dangling: it would be made
    config = tiny_config(tmp_path / "run", **{"logging.file": "run.log"})
    with pytest.raises(OutputDirError, match=rf"{which}: it is a link"):
        train_from_config(config)
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == [which]


@pytest.mark.parametrize("gone", ["config.yaml", "run.json"])
def test_either_file_tells_where_the_checkpoints_are(
    config: SpeedtronicConfig, loader: LoadProcess, gone: str
) -> None:
    (Path(config.run.output_dir) / gone).unlink()
    assert checked(config, loader).selected == 4
    goes_on(config)


@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_without_either_nothing_is_called_healthy_and_a_configuration_helps(
    config: SpeedtronicConfig, loader: LoadProcess, damage: str
) -> None:
    for name in ("config.yaml", "run.json"):
        path = Path(config.run.output_dir) / name
        path.unlink()
        if damage == "empty":
            path.touch()
    report = checked(config, loader)
    assert not report.healthy
    assert checked(config, loader, given=config).selected == 4
    goes_on(config)


def test_a_configuration_that_leads_elsewhere_is_noticed(
    config: SpeedtronicConfig, loader: LoadProcess
) -> None:
    path = Path(config.run.output_dir) / "config.yaml"
    path.write_text(path.read_text().replace("/apart", "/apert"))
    report = checked(config, loader)
    assert report.selected == 4
    assert "run.json says in" in found(report, "config.yaml")[0][1]


def test_an_empty_configuration_of_a_run_is_not_all_defaults(
    config: SpeedtronicConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(config.run.output_dir) / "config.yaml"
    path.write_text("")
    assert main(["train", "--config", str(path), "--resume"]) == 2
    assert f"{path}: is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("resume", [False, True])
def test_nothing_begins_at_step_0_beside_checkpoints_that_are_elsewhere(
    config: SpeedtronicConfig, resume: bool
) -> None:
    before = tree(Path(config.run.output_dir))
    with pytest.raises(RunExistsError, match=r"whose checkpoints are in .*apart"):
        train_from_config(tiny_config(config.run.output_dir), resume=resume)
    assert tree(Path(config.run.output_dir)) == before


def test_checkpoints_that_have_vanished_are_missed(
    config: SpeedtronicConfig, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = newest(config).run_id
    Path(config.checkpoint_dir).rename(Path(config.checkpoint_dir).with_name("not mounted"))
    with caplog.at_level(logging.WARNING):
        train_from_config(config, resume=True, max_steps=1)
    said = f"no checkpoint is in {config.checkpoint_dir}, although run {run_id} has saved some"
    assert said in caplog.text


def test_a_damaged_record_is_one_warning(
    config: SpeedtronicConfig, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(config.run.output_dir) / "run.json"
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        goes_on(config)
    [line] = [r.getMessage() for r in caplog.records if "run.json" in r.getMessage()]
    assert "is damaged: it is not JSON" in line
    assert json.loads(path.read_text())["run_id"] == newest(config).run_id


def test_the_record_of_an_older_version_is_read_and_written_anew(
    config: SpeedtronicConfig, loader: LoadProcess
) -> None:
    path = Path(config.run.output_dir) / "run.json"
    record = json.loads(path.read_text())
    assert record.pop("checkpoints") == config.checkpoint.directory
    path.write_text(json.dumps(record))
    assert checked(config, loader).selected == 4
    goes_on(config)
    assert json.loads(path.read_text())["checkpoints"] == config.checkpoint.directory


def test_own_configuration_lacks_no_section(config: SpeedtronicConfig) -> None:
    directory = Path(config.run.output_dir)
    assert read_config(directory).checkpoint.directory == config.checkpoint.directory
    text = (directory / "config.yaml").read_text()
    whole = text[: text.index("gradient_checkpointing")]
    (directory / "config.yaml").write_text(whole)
    assert "lacks gradient_checkpointing" in locate(directory).problem


WRITER = """
import sys
from speedtronic.checkpoint import RunLock
lock = RunLock(sys.argv[1], warn=False)
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_a_second_writer_of_the_directory_is_refused_whatever_its_checkpoints(
    config: SpeedtronicConfig, tmp_path: Path, enabled: bool
) -> None:
    output_dir = config.run.output_dir
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, output_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout and first.stdin
        assert first.stdout.readline() == "held\n"
        before = tree(Path(output_dir))
        changes = {"checkpoint.directory": str(tmp_path / "other"), "checkpoint.enabled": enabled}
        (tmp_path / "apart").rename(tmp_path / "away")  # so that only the lock is in the way
        with pytest.raises(RunLockedError, match=rf"run is being trained by pid {first.pid} on"):
            train_from_config(tiny_config(output_dir, **changes))
        assert tree(Path(output_dir)) == before
        assert not (tmp_path / "other").exists()
        first.stdin.close()


@pytest.mark.parametrize("directory", [".", "", "../run"])
def test_checkpoints_in_the_output_directory_itself(tmp_path: Path, directory: str) -> None:
    config = tiny_config(
        tmp_path / "run", **{"checkpoint.directory": directory or str(tmp_path / "run")}
    )
    train_from_config(config, max_steps=4)
    assert train_from_config(config, resume=True).steps == 8


def test_a_process_that_trains_twice_in_one_directory_is_refused_the_second(
    tmp_path: Path,
) -> None:
    with build_runtime(tiny_config(tmp_path)) as runtime:
        runtime.train(2)
        other = tiny_config(tmp_path, **{"checkpoint.directory": "other"})
        with pytest.raises((RunLockedError, RunExistsError)):
            build_runtime(other, resume=True)


@pytest.mark.parametrize("json_file", ["metrics.jsonl", "corpus.jsonl"])
def test_somebody_elses_file_is_refused_by_name(tmp_path: Path, json_file: str) -> None:
    path = tmp_path / json_file
    path.write_text('{"text": "a sample"}\n' * 1000)
    before = tree(tmp_path)
    config = tiny_config(tmp_path / "run", **{"logging.json_file": str(path)})
    with pytest.raises(OutputDirError, match=rf"{json_file} is there and does not hold metrics"):
        train_from_config(config)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "names",
    [
        {"logging.json_file": "config.yaml"},
        {"logging.json_file": "report.json"},
        {"logging.file": "run.json"},
        {"logging.file": "log", "logging.json_file": "log"},
    ],
)
def test_two_files_under_one_name_are_refused(tmp_path: Path, names: dict[str, Any]) -> None:
    with pytest.raises(OutputDirError, match="which the run writes for another purpose"):
        train_from_config(tiny_config(tmp_path / "run", **names))
    assert not (tmp_path / "run").exists()


def test_a_flipped_bit_takes_no_later_metrics_along(config: SpeedtronicConfig) -> None:
    path = Path(config.run.output_dir) / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"step": 2', b'"step": r')
    path.write_bytes(b"".join(lines))
    train_from_config(config, resume=True)
    after = path.read_bytes().splitlines(keepends=True)
    assert after[: len(lines)] == lines
    steps = [event["step"] for event in read_events(path, "train_step")]
    assert steps == [1, 3, 4, 5, 6, 7, 8]


def test_a_full_disk_under_the_metrics_is_named_and_lets_the_lock_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path / "run", **{"logging.json_file": "/dev/full"})
    with pytest.raises(OutputDirError, match="/dev/full: it is a device"):
        train_from_config(config)
    config = tiny_config(tmp_path / "run")
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if b'"step": 3' in data:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(
        StorageFullError, match=r"no space left: cannot write .*metrics\.jsonl"
    ) as kept:
        train_from_config(config)
    monkeypatch.undo()
    assert isinstance(kept.value, StorageError)  # which is tried again
    assert train_from_config(config, resume=True).steps == 8
    steps = [e["step"] for e in read_events(tmp_path / "run" / "metrics.jsonl", "train_step")]
    assert steps == list(range(1, 9))


WHERE = {
    "config.yaml": "speedtronic.runtime.build.write_config",
    "metrics": "speedtronic.training.metrics.JsonLines.rewind",
    "run.json": "speedtronic.runtime.runtime.record_place",
    "trainer": "speedtronic.runtime.runtime.Trainer",
    "beginning": "speedtronic.runtime.build.start_run",
    "folders": "speedtronic.runtime.build.make_folders",
}


@pytest.mark.parametrize("where", WHERE)
def test_whatever_fails_on_the_way_lets_everything_go(
    config: SpeedtronicConfig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setattr(WHERE[where], fail)
    with pytest.raises(OSError) as kept:
        train_from_config(config, resume=True)
    monkeypatch.undo()
    for directory in (config.run.output_dir, config.checkpoint_dir):
        lock = RunLock(directory)
        lock.acquire()
        lock.release()
    assert len(os.listdir("/proc/self/fd")) == open_before, kept  # noqa: PTH208


def test_a_hook_that_fails_at_the_end_lets_everything_go(config: SpeedtronicConfig) -> None:
    class Hook:
        def on_event(self, event: str, payload: dict[str, Any]) -> None:
            if event == "run_ended":
                raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as kept:
        train_from_config(config, resume=True, max_steps=6, hooks=[Hook()])
    assert train_from_config(config, resume=True).steps == 8, kept


def test_a_log_that_is_a_link_later_or_full_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from speedtronic.runtime.progress import configure_logging

    (tmp_path / "victim").write_text("")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    configure_logging("INFO", tmp_path / "log")
    for _ in range(2):
        logging.getLogger("speedtronic.x").warning("a message")
    assert capsys.readouterr().err.count("it is a link") == 1
    assert (tmp_path / "victim").read_text() == ""
