"""Migrates a directory of 2.0's checkpoints to today's format, so that its run can be resumed."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from speedtronic.checkpoint import CheckpointStore, layout, open_storage
from speedtronic.checkpoint.candidates import candidates, patiently
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import CorruptError, NoValidCheckpointError
from speedtronic.legacy import payload
from speedtronic.storage.base import Storage, publish_bytes, read_bytes
from speedtronic.training.state import TrainState

logger = logging.getLogger(__name__)


def migrate_run(
    live: TrainState, store: CheckpointStore, config: SpeedtronicConfig, about: Mapping[str, Any]
) -> list[str]:
    """Commit the newest loadable checkpoint of 2.0 as one of today's; its files move to `legacy/`.

    Does nothing where a manifest is, for then it was done before, or where no files of 2.0 are.
    A crash at any moment leaves a directory that is refused without `--trust-legacy` and migrated
    with it: the file that is read stays in its place until today's form replaces it.

    Args:
        live: freshly built for `config`; left with the run's state.
        store: of the run, its lock held; gets the new run id.
        config: of today, for this run.
        about: what every checkpoint carries besides the state and the configuration.

    Returns:
        What of the run is not as it would have been in 2.0, one line each.

    Raises:
        NoValidCheckpointError: files of 2.0 are there and none loads; nothing was changed.
        RestoreError: the run does not go on in `live`; nothing was changed.
        StorageError: a file cannot be moved or written; safe to call again.
    """
    storage = open_storage(config.checkpoint_dir)
    if any(candidate.committed for candidate in candidates(storage)):
        return []
    found = _find(storage)
    if found is None:
        return []
    name, old = found
    today = payload.convert(old, live, config)
    live.load_state_dict(today)  # it fits, or nothing is changed
    _set_aside(storage, keep=name)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    taken_up = {"step": live.step, "taken_up_from": f"Speedtronic 2.0, {name}", "at": now}
    store.config_fingerprint = config.fingerprint()
    store.save({**today, **about, "history": [taken_up]})
    logger.info("took up a run of Speedtronic 2.0 at step %d in %s", live.step, storage.root)
    return _differences(old, today, live, config)


def _find(storage: Storage) -> tuple[str, payload.State] | None:
    """Return name and state of the newest payload of 2.0 that loads; None if there is none."""
    aside = storage.list(layout.LEGACY)
    names = {*storage.list(), *aside}
    steps = {name: step for name in names if (step := layout.step_of(name)) is not None}
    rejected = []
    for name in sorted(steps, reverse=True):
        # What was set aside by a call that was cut short may have been replaced since.
        path = f"{layout.LEGACY}/{name}" if name in aside else name
        try:
            old = payload.read(patiently(partial(read_bytes, storage, path)))
            if "format_version" in old:
                continue
            if old["step"] != steps[name]:
                raise CorruptError(f"payload holds step {old['step']!r}")
        except CorruptError as error:
            rejected.append(f"{storage.root}/{path}: {error}")
            continue
        for line in rejected:
            logger.warning("%s; going back to step %d", line, steps[name])
        return name, old
    if rejected:
        raise NoValidCheckpointError("no checkpoint of 2.0 is good:\n" + "\n".join(rejected))
    return None


def _set_aside(storage: Storage, keep: str) -> None:
    """Move payloads of 2.0 to `legacy/`; copy the pointer and `keep`, which are replaced later."""
    storage.make_folder(layout.LEGACY)
    aside = storage.list(layout.LEGACY)
    for name in storage.list():
        target = f"{layout.LEGACY}/{name}"
        if name in (keep, layout.POINTER):
            if name not in aside:
                publish_bytes(storage, target, read_bytes(storage, name))
        elif layout.step_of(name) is not None:
            storage.rename(name, target)
    storage.sync_folder(layout.LEGACY)
    storage.sync_folder()


def _differences(
    old: payload.State, today: payload.State, live: TrainState, config: SpeedtronicConfig
) -> list[str]:
    lines = [
        "2.0 stored no data position and began its data anew at every resume; this run goes on at "
        f"sample {live.samples} of today's order"
    ]
    if frozen := today["optimizer"]["inherited"]["frozen"]:
        lines.append(
            f"2.0 never trained {len(frozen)} of the parameters ({frozen[0]}, ...), for its adamw "
            "left out the matrices of hidden layers; they stay frozen, so that the run goes on as "
            "it was. To train all of them, begin a run with --init-from: see docs/migration.md"
        )
        if config.optimizer.grad_clip is not None:
            lines.append(
                "2.0 clipped by a norm that the unused gradients of those parameters, piled up "
                "since its start, were part of; here they are not, so updates may be larger"
            )
    if config.model.is_reference and config.model.dropout:
        lines.append("2.0 applied model.dropout to the attention branch twice; here it is once")
    if old.get("coordinator"):
        lines.append("2.0 trained with others (DumbDiLoCo); this run goes on alone")
    return lines
