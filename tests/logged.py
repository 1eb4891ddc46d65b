"""What the loggers of other packages have on disk, read with what those packages themselves use."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32768


def tensorboard_scalars(output_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> (step, value) as TensorBoard shows them, in its order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(output_dir / "tensorboard"), size_guidance={"scalars": 0})
    shown.Reload()
    return {
        name: [(event.step, event.value) for event in shown.Scalars(name)]
        for name in shown.Tags()["scalars"]
    }


def wandb_segments(output_dir: Path) -> list[Path]:
    """The folders that `wandb sync` would upload, oldest first."""
    folders = (output_dir / "wandb").glob("offline-run-*")
    return sorted(folders, key=lambda folder: folder.stat().st_ctime_ns)


def wandb_rows(output_dir: Path) -> list[dict[str, Any]]:
    """The rows of all segments, in the order in which they were logged."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for segment in wandb_segments(output_dir):
        for file in segment.glob("*.wandb"):
            for data in _log_records(file.read_bytes()):
                items = Record.FromString(data).history.item
                if items:
                    rows.append({item.key or item.nested_key[0]: item.value_json for item in items})
    return [{key: json.loads(value) for key, value in row.items()} for row in rows]


def _log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, which W&B's own reader takes it for."""
    position, record = 7, b""  # after W&B's own header
    while position + 7 <= len(data):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        _, length, kind = struct.unpack_from("<IHB", data, position)
        if left < 7 or kind == 0:
            position += left
            continue
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""
