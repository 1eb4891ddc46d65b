"""Whatever happens to the files of a run, it goes on from the last good one, to the same bits."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speedtronic.checkpoint import CheckpointStore, Manifest, Pointer, open_storage
from speedtronic.checkpoint.candidates import read_pointer
from speedtronic.checkpoint.layout import manifest_name, payload_name
from speedtronic.cli import main
from speedtronic.errors import NoValidCheckpointError
from speedtronic.runtime import train_from_config
from tests.recipes import newest
from tests.tiny import names, tiny_config, tiny_file, tree

PAYLOAD, MANIFEST, POINTER = "step_000000000006.pt", "step_000000000006.json", "latest.json"
PAGE = 4096

Damage = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state digest of the run that nothing happened to."""
    config = tiny_config(tmp_path_factory.mktemp("undamaged"))
    train_from_config(config)
    assert newest(config).step == 8
    return newest(config).state_digest


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped at step 6, with checkpoints of steps 2, 4 and 6."""
    output_dir = tmp_path_factory.mktemp("begun")
    train_from_config(tiny_config(output_dir), max_steps=6)
    assert names(output_dir / "checkpoints") == sorted(
        [".lock", POINTER, *(f"step_{s:012d}.{kind}" for s in (2, 4, 6) for kind in ("pt", "json"))]
    )
    return output_dir


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(begun, tmp_path / "run"))


def flip(position: int, bit: int = 0) -> Damage:
    """One bit of the byte at `position`, from the end when negative, flipped."""

    def apply(data: bytes) -> bytes:
        damaged = bytearray(data)
        damaged[position] ^= 1 << bit
        return bytes(damaged)

    return apply


def truncate(size: int) -> Damage:
    return lambda data: data[:size]


def zero_page(number: int) -> Damage:
    def apply(data: bytes) -> bytes:
        start = number * PAGE
        page = bytes(len(data[start : start + PAGE]))
        return data[:start] + page + data[start + PAGE :]

    return apply


# --- the whole way: damage, resume, the same end ---

END_TO_END: dict[str, tuple[str, Damage]] = {
    "payload: a bit of the zip header": (PAYLOAD, flip(2)),
    "payload: a bit of the pickle": (PAYLOAD, flip(100, 3)),
    "payload: a bit of a tensor": (PAYLOAD, flip(60_000, 6)),
    "payload: the last bit": (PAYLOAD, flip(-1, 7)),
    "payload: a page gone": (PAYLOAD, truncate(-PAGE)),
    "payload: a byte more": (PAYLOAD, lambda data: data + b"\0"),
    "payload: empty": (PAYLOAD, truncate(0)),
    "payload: a page of zeroes": (PAYLOAD, zero_page(9)),
    "payload: another file": (PAYLOAD, lambda data: b"not a checkpoint"),
    "manifest: a bit": (MANIFEST, flip(77)),
    "manifest: empty": (MANIFEST, truncate(0)),
    "manifest: zeroes": (MANIFEST, zero_page(0)),
}


@pytest.mark.parametrize("name", END_TO_END)
def test_goes_on_from_the_last_good_one(run: Path, undamaged: str, name: str) -> None:
    file, damage = END_TO_END[name]
    path = run / "checkpoints" / file
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    config = tiny_config(run)
    result = train_from_config(config, resume=True)
    assert result.metrics["updates"] == 4  # from step 4
    assert (newest(config).step, newest(config).state_digest) == (8, undamaged)
    assert (run / "checkpoints" / "quarantine" / file).read_bytes() == damaged
    note = run / "checkpoints" / "quarantine" / f"{file}.reason.json"
    assert json.loads(note.read_text())["reason"]


@pytest.mark.parametrize("name", ["a bit", "empty", "zeroes"])
def test_a_damaged_pointer_costs_nothing(run: Path, undamaged: str, name: str) -> None:
    damage = {"a bit": flip(50), "empty": truncate(0), "zeroes": zero_page(0)}[name]
    path = run / "checkpoints" / POINTER
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    config = tiny_config(run)
    assert train_from_config(config, resume=True).metrics["updates"] == 2
    assert newest(config).state_digest == undamaged
    assert (run / "checkpoints" / "quarantine" / POINTER).read_bytes() == damaged


@pytest.mark.parametrize("gone", [PAYLOAD, MANIFEST])
def test_a_lost_file_is_stepped_back_over(run: Path, undamaged: str, gone: str) -> None:
    (run / "checkpoints" / gone).unlink()
    config = tiny_config(run)
    assert train_from_config(config, resume=True).metrics["updates"] == 4
    assert newest(config).state_digest == undamaged


def test_two_bad_ones_are_stepped_back_over(run: Path, undamaged: str) -> None:
    for step in (4, 6):
        (run / "checkpoints" / f"step_{step:012d}.pt").write_bytes(b"")
    config = tiny_config(run)
    assert train_from_config(config, resume=True).metrics["updates"] == 6
    assert newest(config).state_digest == undamaged


# --- many places, as far as the selection ---


def selected(run: Path) -> int:
    checkpoint = CheckpointStore(open_storage(str(run / "checkpoints")), keep_last=3).select()
    assert checkpoint is not None
    return checkpoint.manifest.step


def restored_each_time(run: Path, file: str, damages: dict[str, Damage]) -> Iterator[str]:
    """Apply each damage to a whole run in turn, and put it back together after each."""
    checkpoints = run / "checkpoints"
    whole = {name: (checkpoints / name).read_bytes() for name in (PAYLOAD, MANIFEST, POINTER)}
    for name, damage in damages.items():
        (checkpoints / file).write_bytes(damage(whole[file]))
        yield name
        shutil.rmtree(checkpoints / "quarantine")
        for original, content in whole.items():
            (checkpoints / original).write_bytes(content)


def test_a_bit_anywhere_in_the_payload(run: Path) -> None:
    size = (run / "checkpoints" / PAYLOAD).stat().st_size
    places = [*range(0, 64), *range(64, size, 1999), *range(size - 64, size)]
    damages = {f"bit {p % 8} of byte {p}": flip(p, p % 8) for p in places}
    for name in restored_each_time(run, PAYLOAD, damages):
        assert selected(run) == 4, name
        assert names(run / "checkpoints" / "quarantine")[2:] == [PAYLOAD, f"{PAYLOAD}.reason.json"]


def test_truncated_at_any_page_and_a_few_bytes_around(run: Path) -> None:
    size = (run / "checkpoints" / PAYLOAD).stat().st_size
    cuts = {cut for page in range(0, size, PAGE) for cut in (page - 1, page, page + 1)}
    cuts = {cut for cut in cuts | {size - 1} if 0 <= cut < size}
    damages = {f"cut to {cut} bytes": truncate(cut) for cut in sorted(cuts)}
    for name in restored_each_time(run, PAYLOAD, damages):
        assert selected(run) == 4, name


def test_any_page_of_zeroes(run: Path) -> None:
    size = (run / "checkpoints" / PAYLOAD).stat().st_size
    damages = {f"page {number}": zero_page(number) for number in range(-(-size // PAGE))}
    for name in restored_each_time(run, PAYLOAD, damages):
        assert selected(run) == 4, name


# That every single bit is noticed: tests/unit/checkpoint/test_records.py.
@pytest.mark.parametrize(("file", "step"), [(MANIFEST, 4), (POINTER, 6)])
def test_bits_all_over_the_records(run: Path, file: str, step: int) -> None:
    size = (run / "checkpoints" / file).stat().st_size
    damages = {f"bit {p % 8} of byte {p}": flip(p, p % 8) for p in range(0, size, 5)}
    for name in restored_each_time(run, file, damages):
        assert selected(run) == step, name
        assert file in names(run / "checkpoints" / "quarantine"), name


# --- nothing good left ---


def test_every_checkpoint_bad_is_an_error_and_changes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = ["step_000000000002.pt", "step_000000000004.json", PAYLOAD]
    for name in bad:
        path = run / "checkpoints" / name
        path.write_bytes(flip(70)(path.read_bytes()))
    config_file = tiny_file(tmp_path / "run.yaml", run)
    before = tree(run, without=(".lock",))
    for _ in range(2):
        assert main(["train", "--config", config_file, "--resume"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert all(name in said.err for name in bad)
        assert "Traceback" not in said.err
        with pytest.raises(NoValidCheckpointError):
            train_from_config(tiny_config(run), resume=True)
        assert tree(run, without=(".lock",)) == before


# --- pointers that lead astray ---


def into_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("")


def into_a_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def into_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


POINTERS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "not JSON": lambda path: path.write_text("step 6"),
    "not an object": lambda path: path.write_text("[6]"),
    "stale": lambda path: path.write_bytes(pointer_to(path.parent, 4)),
    "to a step that is not there": lambda path: path.write_bytes(pointer_to_99(path.parent)),
    "a directory": into_a_directory,
    "a link": into_a_link,
    "a pipe": into_a_pipe,
}
NAMED = ["step_000000000099.pt", "", ".", "quarantine", "../outside.pt", "ABSOLUTE", "a\0b"]


def pointer_to(root: Path, step: int) -> bytes:
    """The content of `latest.json` when `step` was the newest."""
    return Manifest.from_file((root / manifest_name(step)).read_bytes(), step).pointer().to_bytes()


def pointer_to_99(root: Path) -> bytes:
    """A whole pointer of this run to a checkpoint that was never there."""
    changes = {"step": 99, "file": payload_name(99)}
    return Pointer.from_bytes(pointer_to(root, 6)).model_copy(update=changes).to_bytes()


def check_resumes_at_6(run: Path, undamaged: str) -> None:
    """The pointer is repaired without a step trained, and the run ends as it should."""
    # A good payload where no pointer may lead.
    outside = run / "outside.pt"
    shutil.copy(run / "checkpoints" / "step_000000000002.pt", outside)
    before = outside.read_bytes()
    config = tiny_config(run)
    assert train_from_config(config, resume=True, max_steps=6).metrics["updates"] == 0
    storage = open_storage(config.checkpoint_dir)
    assert read_pointer(storage).pointer == newest(config).pointer()
    assert newest(config).step == 6
    assert train_from_config(config, resume=True).metrics["updates"] == 2
    assert newest(config).state_digest == undamaged
    assert outside.read_bytes() == before


@pytest.mark.parametrize("name", POINTERS)
def test_a_bad_pointer_is_repaired(run: Path, undamaged: str, name: str) -> None:
    POINTERS[name](run / "checkpoints" / POINTER)
    check_resumes_at_6(run, undamaged)


@pytest.mark.parametrize("file", NAMED)
@pytest.mark.parametrize("whole", [True, False], ids=["well-formed", "by hand"])
def test_a_pointer_is_never_followed(run: Path, undamaged: str, file: str, whole: bool) -> None:
    named = str(run / "outside.pt") if file == "ABSOLUTE" else file
    path = run / "checkpoints" / POINTER
    if whole:
        good = Pointer.from_bytes(path.read_bytes())
        path.write_bytes(good.model_copy(update={"file": named}).to_bytes())
    else:
        path.write_text(json.dumps({"step": 6, "file": named}))
    check_resumes_at_6(run, undamaged)
