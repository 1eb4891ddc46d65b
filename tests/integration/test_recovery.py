"""The checklist on damaged run directories: exactly the expected findings, and nothing written
without repair; after a repair the run is healthy and goes on to the bits of the undamaged one."""

import json
import os
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.checkpoint import CheckpointStore, Manifest, RunLock, open_storage
from speedtronic.checkpoint.candidates import candidates, read_pointer
from speedtronic.checkpoint.digest import bytes_digest
from speedtronic.checkpoint.layout import manifest_name, payload_name
from speedtronic.checkpoint.records import FileEntry
from speedtronic.checkpoint.retention import pin, pinned
from speedtronic.errors import UsageError
from speedtronic.recovery import (
    CHECKS,
    LoadProcess,
    RecoveryReport,
    examination,
    expand,
    judging,
    run_checklist,
)
from speedtronic.run_directory import record_place
from speedtronic.runtime import train_from_config
from speedtronic.storage import regular_files as run_directory
from tests.recipes import newest
from tests.tiny import names, tiny_config, tree
from tests.waiting import Processes

PAYLOAD, MANIFEST = payload_name(6), manifest_name(6)
SELECTED_OK = [("payload", "ok"), ("counters", "ok")]
REST_OK = [("target", "ok"), ("repetition", "ok"), ("previous", "ok")]

Findings = list[tuple[str, str]]


@pytest.fixture(scope="module")
def loader() -> Iterator[LoadProcess]:
    with LoadProcess() as process:
        yield process


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state digest of the run that nothing happened to."""
    config = tiny_config(tmp_path_factory.mktemp("undamaged"))
    train_from_config(config)
    return newest(config).state_digest


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped at step 6, with checkpoints of steps 2, 4 and 6."""
    output_dir = tmp_path_factory.mktemp("begun")
    train_from_config(tiny_config(output_dir), max_steps=6)
    return output_dir


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """Another such run: a copy that does not look like one."""
    root = Path(shutil.copytree(begun, tmp_path / "run"))
    record_place(root, newest(tiny_config(root)).run_id)
    return root


def outline(report: RecoveryReport) -> Findings:
    return [(finding.check, finding.status) for finding in report.findings]


# --- the damages ---


def store(run: Path) -> CheckpointStore:
    return CheckpointStore(open_storage(str(run / "checkpoints")), keep_last=None)


def edit(name: str, change: Callable[[bytearray], Any]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / "checkpoints" / name
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)

    return damage


def cut(content: bytearray) -> None:
    del content[-4096:]


def flip(content: bytearray) -> None:
    content[60_000] ^= 64


def zero(content: bytearray) -> None:
    content[9 * 4096 : 10 * 4096] = bytes(4096)


def stale(run: Path) -> None:
    content = (run / "checkpoints" / manifest_name(4)).read_bytes()
    pointer = Manifest.from_file(content, 4).pointer()
    (run / "checkpoints" / "latest.json").write_bytes(pointer.to_bytes())


def outside(run: Path) -> None:
    shutil.copy(run / "checkpoints" / payload_name(2), run / "x")
    (run / "checkpoints" / "latest.json").write_text('{"step": 6, "file": "../x"}')


def of_another_run(run: Path) -> None:
    config = tiny_config(run.with_name("other"), **{"run.seed": 7})
    train_from_config(config, max_steps=6)
    shutil.copy(Path(config.checkpoint_dir) / MANIFEST, run / "checkpoints" / MANIFEST)


def saved_with(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Step 6 saved anew, with all digests right, as a program with a defect would have."""

    def damage(run: Path) -> None:
        checkpoints = store(run)
        before = checkpoints.load_step(6)
        change(before.state)
        for name in (PAYLOAD, MANIFEST):
            (run / "checkpoints" / name).unlink()
        checkpoints.run_id = before.manifest.run_id
        checkpoints.config_fingerprint = before.manifest.config_fingerprint
        checkpoints.save(before.state)

    return damage


def set_back(state: dict[str, Any]) -> None:
    state["scheduler"]["last_epoch"] = 5


def make_nan(state: dict[str, Any]) -> None:
    next(iter(state["model"].values())).view(-1)[3] = float("nan")


def only_one_and_bad(run: Path) -> None:
    for step in (2, 4):
        for name in (payload_name(step), manifest_name(step)):
            (run / "checkpoints" / name).unlink()
    edit(PAYLOAD, flip)(run)


def copied(run: Path) -> None:
    shutil.move(run, run.with_name("elsewhere"))
    shutil.copytree(run.with_name("elsewhere"), run)


DIRECTORY_OK = [("directory", "ok")]
BACK_TO_4 = [*DIRECTORY_OK, ("pointer", "failed"), ("payload", "failed"), *SELECTED_OK, *REST_OK]
DISAGREES = [
    *DIRECTORY_OK,
    ("pointer", "failed"),
    ("payload", "ok"),
    ("payload", "ok"),
    ("counters", "failed"),
    ("counters", "ok"),
    *REST_OK,
]
LEFT_ALONE = [*DIRECTORY_OK, ("pointer", "failed"), ("payload", "warning"), *SELECTED_OK, *REST_OK]
POINTER_ONLY = [*DIRECTORY_OK, ("pointer", "failed"), *SELECTED_OK, *REST_OK]

# The damage, the step that a resume starts from, the findings without repair, and words in them.
DAMAGES: dict[str, tuple[Callable[[Path], Any], int | None, Findings, list[str]]] = {
    "stale pointer": (stale, 6, POINTER_ONLY, ["names step 4"]),
    "missing pointer": (
        lambda run: (run / "checkpoints" / "latest.json").unlink(),
        6,
        POINTER_ONLY,
        ["missing"],
    ),
    "pointer outside": (outside, 6, POINTER_ONLY, ["pointer is damaged"]),
    "truncated newest": (edit(PAYLOAD, cut), 4, BACK_TO_4, ["names step 6", "bytes, expected"]),
    "flipped bit": (edit(PAYLOAD, flip), 4, BACK_TO_4, ["names step 6", "payload is damaged"]),
    "zeroed page": (edit(PAYLOAD, zero), 4, BACK_TO_4, ["names step 6", "payload is damaged"]),
    "missing manifest": (
        lambda run: (run / "checkpoints" / MANIFEST).unlink(),
        4,
        LEFT_ALONE,
        ["names step 6", "no manifest"],
    ),
    "manifest of another run": (of_another_run, 4, LEFT_ALONE, ["names step 6", "of run "]),
    "counters that disagree": (
        saved_with(set_back),
        4,
        DISAGREES,
        ["names step 6", "the schedule is at step 5, the payload at 6"],
    ),
    "NaN weights": (saved_with(make_nan), 4, DISAGREES, ["names step 6", "NaN or infinity in "]),
    "only one, and bad": (
        only_one_and_bad,
        None,
        [*DIRECTORY_OK, ("pointer", "failed"), ("payload", "failed")],
        ["names step 6", "payload is damaged"],
    ),
    "copied from elsewhere": (
        copied,
        6,
        [("directory", "warning"), ("pointer", "ok"), *SELECTED_OK, *REST_OK],
        ["a copy of the directory"],
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run(run: Path, undamaged: str, loader: LoadProcess, name: str) -> None:
    damage, step, expected, words = DAMAGES[name]
    damage(run)
    before = tree(run)

    report = run_checklist(str(run), loader=loader)
    assert outline(report) == expected
    assert report.selected == step
    assert report.healthy == ("failed" not in dict(expected).values())
    told = [f for f in report.findings if f.status != "ok"]
    assert all(word in finding.found for word, finding in zip(words, told, strict=True))
    failed = [finding for finding in report.findings if finding.status == "failed"]
    action = f"speedtronic recover {run}" if step else "no checkpoint is good"
    assert all(finding.action.startswith(action) for finding in failed)
    assert tree(run) == before

    repaired = run_checklist(str(run), repair=True, loader=loader)
    assert repaired.selected == step
    if step is None:
        assert outline(repaired) == expected
        assert not repaired.healthy
        assert tree(run) == before  # what is left is left where it is
        return
    mended = [(check, "repaired" if s == "failed" else s) for check, s in expected]
    assert outline(repaired) == mended
    assert repaired.healthy

    again = run_checklist(str(run), loader=loader)
    assert again.healthy
    assert {s for _, s in outline(again)} <= {"ok", "warning"}
    config = tiny_config(run)
    assert train_from_config(config, resume=True).metrics["updates"] == 8 - step
    assert (newest(config).step, newest(config).state_digest) == (8, undamaged)


def test_what_is_repaired_is_kept(run: Path, loader: LoadProcess) -> None:
    saved_with(make_nan)(run)
    content = (run / "checkpoints" / PAYLOAD).read_bytes()
    (run / "checkpoints" / "latest.json").write_bytes(b"rot")
    run_checklist(str(run), repair=True, loader=loader)
    aside = run / "checkpoints" / "quarantine"
    assert (aside / PAYLOAD).read_bytes() == content
    assert (aside / "latest.json").read_bytes() == b"rot"
    assert "NaN" in json.loads((aside / f"{PAYLOAD}.reason.json").read_text())["reason"]


# --- the directory ---


def warnings(report: RecoveryReport) -> list[str]:
    return [f.found for f in report.findings if f.status == "warning"]


def test_temporaries_of_a_dead_writer(run: Path, loader: LoadProcess) -> None:
    junk = run / "checkpoints" / f".{PAYLOAD}.tmp-0123456789abcdef"
    junk.write_bytes(b"half")
    report = run_checklist(str(run), loader=loader)
    assert report.healthy and junk.exists()
    assert ["1 temporary files" in found for found in warnings(report)] == [True]
    assert outline(run_checklist(str(run), repair=True, loader=loader))[0] == (
        "directory",
        "repaired",
    )
    assert not junk.exists()


def test_what_the_last_report_lists_is_there(run: Path, loader: LoadProcess) -> None:
    listed = [{"step": s, "file": payload_name(s), "digest": "..."} for s in (2, 4, 6)]
    (run / "report.json").write_text(json.dumps({"checkpoints": listed}))
    assert warnings(run_checklist(str(run), loader=loader)) == []
    for name in (payload_name(2), manifest_name(2)):
        (run / "checkpoints" / name).unlink()
    assert warnings(run_checklist(str(run), loader=loader)) == [
        f"checkpoints missing: {payload_name(2)}"
    ]
    train_from_config(tiny_config(run), resume=True)  # retention has its way from here on
    assert warnings(run_checklist(str(run), loader=loader)) == []


def test_a_configuration_that_is_not_the_runs(run: Path, loader: LoadProcess) -> None:
    changed = tiny_config(run, **{"optimizer.lr": 0.5})
    [found] = warnings(run_checklist(str(run), config=changed, loader=loader))
    assert found == "optimizer.lr: the run has 0.0003, configured is 0.5"
    (run / "config.yaml").write_text("run: [")
    [found] = warnings(run_checklist(str(run), loader=loader))
    assert "config.yaml: line 1" in found
    (run / "config.yaml").unlink()
    assert warnings(run_checklist(str(run / "checkpoints"), loader=loader)) == ["missing"]


def test_checkpoints_lie_where_the_configuration_says(tmp_path: Path, loader: LoadProcess) -> None:
    config = tiny_config(tmp_path / "run", **{"checkpoint.directory": str(tmp_path / "apart")})
    train_from_config(config, max_steps=4)
    assert run_checklist(str(tmp_path / "run"), loader=loader).selected == 4
    (tmp_path / "run" / "config.yaml").unlink()
    report = run_checklist(str(tmp_path / "run"), config=config, loader=loader)
    assert (report.healthy, report.selected) == (True, 4)


def test_the_run_that_was_trained_here_wins(run: Path, loader: LoadProcess) -> None:
    """Without a pointer, a newer checkpoint of another run would be taken for the run's."""
    of_another_run(run)
    shutil.copy(run.with_name("other") / "checkpoints" / PAYLOAD, run / "checkpoints")
    (run / "checkpoints" / "latest.json").unlink()
    report = run_checklist(str(run), repair=True, loader=loader)
    assert (report.healthy, report.selected) == (True, 4)
    assert train_from_config(tiny_config(run), resume=True, max_steps=4).steps == 4


def test_a_run_without_checkpoints(tmp_path: Path, loader: LoadProcess) -> None:
    config = tiny_config(tmp_path / "run")
    train_from_config(config, max_steps=1)
    before = tree(tmp_path)
    for repair in (False, True):
        report = run_checklist(str(tmp_path / "run"), repair=repair, drill="load", loader=loader)
        assert outline(report) == [("directory", "warning"), ("load", "warning")]
        assert (report.healthy, report.selected) == (True, None)
        assert tree(tmp_path) == before


def test_a_run_that_is_about_to_begin(tmp_path: Path, loader: LoadProcess) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    assert run_checklist(str(tmp_path / "run"), loader=loader).healthy
    lock = RunLock(str(checkpoints))
    lock.acquire()
    for directory in (tmp_path / "run", checkpoints):
        report = run_checklist(str(directory), loader=loader)
        assert {status for _, status in outline(report)} == {"warning"}
    lock.release()


def test_a_first_save_cut_short(run: Path, loader: LoadProcess) -> None:
    for name in names(run / "checkpoints"):
        if name not in (payload_name(2), ".lock"):
            (run / "checkpoints" / name).unlink()
    report = run_checklist(str(run), repair=True, loader=loader)
    assert outline(report) == [("directory", "warning"), ("payload", "warning")]
    assert report.healthy


def test_a_run_of_2_0_is_named(run: Path, loader: LoadProcess) -> None:
    for name in names(run / "checkpoints"):
        if name != ".lock":
            (run / "checkpoints" / name).unlink()
    torch.save({"model": {}, "step": 2}, run / "checkpoints" / payload_name(2))
    report = run_checklist(str(run), loader=loader)
    assert not report.healthy
    assert "--trust-legacy" in report.findings[-1].found


# --- pins ---


def test_the_checkpoint_before_is_pinned_until_a_later_one_is_good(
    run: Path, loader: LoadProcess
) -> None:
    storage = open_storage(str(run / "checkpoints"))
    pin(storage, 2, "mine")
    run_checklist(str(run), loader=loader)
    assert set(pinned(storage)) == {2}
    for _ in range(2):
        run_checklist(str(run), repair=True, loader=loader)
        assert set(pinned(storage)) == {2, 4}
    config = tiny_config(run, **{"run.max_steps": 12, "checkpoint.keep_last": 1})
    train_from_config(config, resume=True, max_steps=10, schedule_max_steps=12)
    assert [c.step for c in candidates(storage)] == [10, 6, 4, 2]  # 6 is where it went on from
    run_checklist(str(run), repair=True, loader=loader, config=config)
    assert pinned(storage)[2] == "mine"
    assert set(pinned(storage)) == {2, 6}
    train_from_config(config, resume=True)
    run_checklist(str(run), repair=True, loader=loader)  # its target is reached
    assert set(pinned(storage)) == {2}


# --- a run that is being trained ---


def test_a_run_being_trained_is_left_alone(run: Path, loader: LoadProcess) -> None:
    stale(run)  # between the manifest and the pointer
    (run / "checkpoints" / payload_name(8)).write_bytes(b"half")
    (run / "checkpoints" / f".{MANIFEST}.tmp-0123456789abcdef").write_bytes(b"half")
    lock = RunLock(str(run / "checkpoints"))
    lock.acquire()
    before = tree(run)
    try:
        for repair in (False, True):
            report = run_checklist(str(run), repair=repair, loader=loader)
            assert outline(report) == [
                ("directory", "warning"),
                ("pointer", "ok"),
                *SELECTED_OK,
                *REST_OK,
            ]
            assert "being trained by pid" in report.findings[0].found
            assert (report.healthy, report.selected) == (True, 6)
            assert tree(run) == before
    finally:
        lock.release()


def test_damage_is_told_of_while_training_and_repaired_after(
    run: Path, loader: LoadProcess
) -> None:
    edit(PAYLOAD, flip)(run)
    lock = RunLock(str(run / "checkpoints"))
    lock.acquire()
    try:
        before = tree(run)
        report = run_checklist(str(run), repair=True, loader=loader)
        assert ("payload", "failed") in outline(report)
        assert report.actions()[-1] == f"when it is not being trained: speedtronic recover {run}"
        assert tree(run) == before
    finally:
        lock.release()
    assert run_checklist(str(run), repair=True, loader=loader).healthy


def test_looking_takes_no_lock(
    run: Path, loader: LoadProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(PAYLOAD, flip)(run)

    def taken(storage: Any) -> None:
        raise AssertionError("the lock was asked for")

    monkeypatch.setattr(examination, "open_lock", taken)
    assert not run_checklist(str(run), loader=loader).healthy


class Meanwhile(LoadProcess):
    """Lets something happen to the files just before each load."""

    def __init__(self, loader: LoadProcess, happens: Callable[[int], Any]) -> None:
        super().__init__()
        self._loader = loader
        self._happens = happens
        self.loads: list[int] = []

    def load(self, root: str, step: int) -> Any:
        self._happens(step)
        self.loads.append(step)
        return self._loader.load(root, step)


@pytest.mark.parametrize("looks", [1, 3])
def test_files_that_retention_deletes_are_no_damage(
    run: Path, loader: LoadProcess, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    monkeypatch.setattr(judging, "MAX_SNAPSHOTS", looks)
    config = tiny_config(run, **{"checkpoint.keep_last": 1})

    def go_on(step: int) -> None:
        if step == 6:
            train_from_config(config, resume=True)
            for name in (MANIFEST, PAYLOAD):  # kept for having been verified
                (run / "checkpoints" / name).unlink(missing_ok=True)

    report = run_checklist(str(run), drill="load", loader=Meanwhile(loader, go_on))
    if looks == 1:  # it has seen that something moves, and no more
        assert outline(report) == [("directory", "warning"), ("load", "warning")]
        assert (report.healthy, report.selected) == (True, None)
        return
    assert {status for _, status in outline(report)} == {"ok"}
    assert report.selected == 8


def test_a_writer_whose_lock_cannot_be_seen_causes_no_alarm(
    run: Path, loader: LoadProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale(run)
    looks: list[Path] = []

    def busy(storage: Any) -> Any:
        looks.append(run / "checkpoints" / f"{len(looks)}")
        looks[-1].write_text("")  # something new each time
        return read_pointer(storage)

    monkeypatch.setattr(judging, "read_pointer", busy)
    report = run_checklist(str(run), repair=True, loader=loader)
    assert outline(report)[:2] == [("directory", "warning"), ("pointer", "ok")]
    assert "being trained by a process not seen from here" in report.findings[0].found
    assert report.healthy
    assert len(looks) == 2 * judging.MAX_SNAPSHOTS
    assert pinned(open_storage(str(run / "checkpoints"))) == {}  # nor anything else written


def test_each_checkpoint_is_loaded_once(run: Path, loader: LoadProcess) -> None:
    calm = Meanwhile(loader, lambda step: None)
    run_checklist(str(run), drill="load", loader=calm)
    assert calm.loads == [6]
    edit(PAYLOAD, flip)(run)
    calm.loads.clear()
    run_checklist(str(run), repair=True, drill="load", loader=calm)
    assert calm.loads == [6, 4]


# --- what loading can do ---


def test_a_payload_that_takes_all_memory_is_no_exception(run: Path) -> None:
    """A zip may unpack to any size; the manifest vouches for this one."""
    path = run / "checkpoints" / PAYLOAD
    torch.save({"step": 6, "model": {"weight": torch.zeros(16 * 2**20)}}, path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, record in records.items():
            archive.writestr(name, record)
    content = path.read_bytes()
    assert len(content) < 2**21
    vouch_for(run, content)
    before = tree(run)
    with LoadProcess(spare_bytes=32 * 2**20) as small:
        report = run_checklist(str(run), repair=True, loader=small)
        [payload] = [finding for finding in report.findings if finding.check == "payload"]
        assert payload.status == "failed"
        assert "allocate memory" in payload.found
        assert tree(run) == before  # which says nothing of the file
        assert small.load(str(run / "checkpoints"), 4).outcome == "loaded"


def test_a_process_that_dies_is_no_exception(run: Path) -> None:
    with LoadProcess() as loader:
        loader.load(str(run / "checkpoints"), 6)
        assert loader._child is not None
        with Processes([loader._child.pid]) as processes:
            os.kill(loader._child.pid, signal.SIGKILL)
            assert processes.end_within()
        report = run_checklist(str(run), repair=True, loader=loader)
        assert outline(report) == [("directory", "ok"), ("payload", "failed")]
        assert "was killed by SIGKILL" in report.findings[-1].found
        assert run_checklist(str(run), loader=loader).healthy  # a new one


def vouch_for(run: Path, content: bytes) -> None:
    """Make manifest and pointer say that these are the bytes of step 6."""
    old = newest(tiny_config(run))
    entry = FileEntry(name=PAYLOAD, size_bytes=len(content), digest=bytes_digest(content))
    manifest = old.model_copy(update={"files": [entry]})
    (run / "checkpoints" / MANIFEST).write_bytes(manifest.to_bytes())
    (run / "checkpoints" / "latest.json").write_bytes(manifest.pointer().to_bytes())


# --- bad input ---


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    for repair in (False, True):
        [finding] = run_checklist(str(tmp_path), repair=repair, drill="replay").findings
        assert (finding.check, finding.status) == ("directory", "failed")
        assert "holds no run" in finding.found
    assert names(tmp_path) == []


def test_a_directory_that_cannot_be_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run_directory, "_open", denied)  # chmod does not keep root out
    report = run_checklist(str(run), repair=True)
    [finding] = report.findings
    assert finding.found == f"it cannot be read: cannot read {run}/run.json: Permission denied"
    assert (report.healthy, report.selected) == (False, None)


def test_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "missing"):
        with pytest.raises(UsageError, match="is not a directory"):
            run_checklist(str(tmp_path / name))
    with pytest.raises(UsageError, match="expected none, load, replay, resume"):
        run_checklist(str(tmp_path), drill="all")


def test_globs(tmp_path: Path) -> None:
    for name in ("b1", "b2"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    for name in ("a[1]x", "b4", "b5/quarantine", "b1/checkpoints/quarantine", "c0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "b3").write_text("")
    (tmp_path / "b6").symlink_to("gone")
    for folder in ("b5", "b5/quarantine", "b1/checkpoints", "b1/checkpoints/quarantine"):
        (tmp_path / folder / "step_000000000004.pt").write_text("")
    inside = expand([f"{tmp_path}/**"])
    assert [Path(p).name for p in inside] == ["b1", "b2", "b5"]
    given = [f"{tmp_path}/b*", f"{tmp_path}/b1", f"{tmp_path}/a[1]x"]
    assert [Path(p).name for p in expand(given)] == ["b1", "b2", "b5", "a[1]x"]
    assert [Path(p).name for p in expand([f"{tmp_path}/c0"])] == ["c0"]  # named, so judged
    with pytest.raises(UsageError, match=r"/c\*: no run among the 1 directories and files"):
        expand([f"{tmp_path}/c*"])
    for nothing in ("d*", "c"):
        with pytest.raises(UsageError, match="director"):
            expand([f"{tmp_path}/{nothing}"])


def test_the_names_of_the_checks() -> None:
    assert [name for name, _ in CHECKS] == [
        "directory",
        "pointer",
        "payload",
        "counters",
        "target",
        "repetition",
        "previous",
    ]
