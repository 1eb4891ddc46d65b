"""The smallest runs, each done in a tenth of a second, and pictures of what they left on disk."""

from pathlib import Path
from typing import Any

from speedtronic import SpeedtronicConfig

Tree = dict[str, tuple[int, bytes]]


def tiny_config(output_dir: Path | str, **changes: Any) -> SpeedtronicConfig:
    """Eight steps on made-up tokens, a checkpoint every second one; with dropout and a shuffle."""
    config = SpeedtronicConfig.from_dict(
        {
            "run": {"output_dir": str(output_dir), "max_steps": 8, "device": "cpu"},
            "model": {
                "n_layer": 1,
                "d_model": 16,
                "n_head": 2,
                "vocab_size": 256,
                "max_seq_len": 16,
                "dropout": 0.1,
            },
            "data": {
                "num_tokens": 400,
                "micro_batch_size": 2,
                "target_batch_size": 4,
                "shuffle": True,
            },
            "scheduler": {"warmup_steps": 2},
            "checkpoint": {"every_steps": 2},
            "logging": {"every_steps": 1},
        }
    )
    return config.override(changes)


def tiny_file(path: Path, output_dir: Path | str, **changes: Any) -> str:
    """The same as a YAML file, for the command line; returns its name."""
    config = tiny_config(output_dir, **changes)
    # As a person would write it: nothing that follows another value is spelled out.
    path.write_text(
        config.model_dump_json(exclude_unset=True),  # JSON is YAML
        encoding="utf-8",
    )
    return str(path)


def tree(root: Path, *, without: tuple[str, ...] = ()) -> Tree:
    """Name -> (mtime in ns, content) of everything below `root`; folders and links too."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        if path.name in without:
            continue
        info = path.lstat()
        if path.is_symlink():
            content = b"-> " + str(path.readlink()).encode()
        else:
            content = path.read_bytes() if path.is_file() else b"/"
        found[str(path.relative_to(root))] = (0 if path.is_dir() else info.st_mtime_ns, content)
    return found


def names(folder: Path) -> list[str]:
    """The names in a folder, sorted; none if it is not there."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
