"""A real run on a disk whose every write and flush is logged."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedtronic import SpeedtronicConfig
from tests.powerloss.filesystems import FileSystem, make, mounted
from tests.powerloss.log import Log
from tests.tiny import tiny_config
from tests.waiting import wait_until

MOUNTS_S = 10.0
LARGE = {  # a payload of 10 MiB: more than the block that goes past the page cache
    "run.max_steps": 12,
    "model.d_model": 128,
    "model.n_layer": 4,
}
SMALL = {"run.max_steps": 32}


@dataclass(frozen=True)
class Recording:
    """A run from an empty file system to its end, undisturbed.

    Attributes:
        kind: of the file system.
        base: the image before.
        log: what was done to it since.
        mountpoint: where it was mounted, and must be again: a run knows where it lives.
        config: of the run.
        files: what the run's own files held at the end, by name.
        large: whether payloads are of several MiB.
    """

    kind: FileSystem
    base: Path
    log: Log
    mountpoint: Path
    config: SpeedtronicConfig
    files: dict[str, bytes]
    large: bool


def record(
    kind: FileSystem, folder: Path, *, large: bool, async_save: bool, broken: str = ""
) -> Recording:
    """Make a file system in `folder` and train on it.

    Args:
        kind: of the file system.
        folder: empty; large enough for images and log.
        large: whether payloads are of several MiB.
        async_save: whether training goes on while a checkpoint is written.
        broken: see `training`.
    """
    base, image, log, fuse, mountpoint = (
        folder / name for name in ("base", "image", "log", "fuse", "mnt")
    )
    fuse.mkdir()
    mountpoint.mkdir()
    config = recipe(mountpoint / "run", large=large, async_save=async_save)
    file = folder / "config.yaml"
    file.write_text(config.model_dump_json(exclude_unset=True), encoding="utf-8")  # JSON is YAML
    make(kind, image)
    subprocess.run(["cp", "--sparse=always", str(image), str(base)], check=True)
    with (
        _logged(image, log, fuse),
        mounted(kind, fuse / "disk", mountpoint, crashed=False),
    ):
        command = [sys.executable, "-m", "tests.powerloss.training", str(file)]
        subprocess.run([*command, str(fuse / "notes"), broken], check=True, timeout=300)
        files = {
            path.name: path.read_bytes()
            for path in (mountpoint / "run").iterdir()
            if path.is_file()
        }
    image.unlink()
    return Recording(kind, base, Log(log), mountpoint, config, files, large)


def recipe(output_dir: Path, *, large: bool, async_save: bool) -> SpeedtronicConfig:
    """Some seconds of training with a save every second step, of which two are kept."""
    changes: dict[str, Any] = LARGE if large else SMALL
    return tiny_config(
        output_dir,
        **changes,
        **{
            "data.num_tokens": 4000,
            "checkpoint.async_save": async_save,
            "checkpoint.keep_last": 2,
            "run.name": "power loss",
        },
    )


@contextmanager
def _logged(image: Path, log: Path, fuse: Path) -> Iterator[None]:
    """The file `disk` in `fuse` is `image`, and logged."""
    command = [sys.executable, "-m", "tests.powerloss.disk", str(fuse), str(image), str(log)]
    with subprocess.Popen(command) as server:
        try:
            disk = fuse / "disk"
            wait_until(lambda: disk.exists() or server.poll() is not None, MOUNTS_S)
            if not disk.exists():
                raise RuntimeError(f"the logged disk was not mounted: {server.poll()}")
            yield
        finally:
            subprocess.run(["umount", str(fuse)], check=False)
            server.wait(timeout=30)


def notes(recording: Recording) -> list[dict[str, Any]]:
    """All that the run noted, oldest first."""
    intervals = recording.log.intervals()
    return [json.loads(text) for interval in intervals for _, text in interval.notes]
