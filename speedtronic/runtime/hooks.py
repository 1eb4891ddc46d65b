"""Builds the hooks that `logging.hooks` names: receivers of training events.

A hook has `on_event(event, payload)` and hears, in the training thread and in this order,

    run_started       step, run_id (None before the first save), config (secrets blanked)
    train_step        step, loss, lr, samples, tokens, tokens_per_s
    validation        step, val_loss
    checkpoint_saved  the fields of the pointer, save_stall_s, save_durable_s, save_bytes
    run_ended         step

A killed process sends no `run_ended`. What it logged after the last checkpoint is logged again by
the resumed run, to the bit; each built-in hook keeps one of the two.
"""

import difflib
import importlib.util
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError
from speedtronic.storage.regular_files import read_json, replace_text, strict_json
from speedtronic.training.metrics import Hook, JsonLines, read_events
from speedtronic.training.precision import resolve_device
from speedtronic.training.rng import capture_rng, restore_rng
from speedtronic.user_code import call_factory, import_factory

SCALARS = ("loss", "lr", "tokens_per_s", "val_loss")

logger = logging.getLogger(__name__)


def build_hooks(config: SpeedtronicConfig, output_dir: Path) -> list[Hook]:
    """Build the hooks, each wrapped so that it can neither stop nor alter training.

    They write below `output_dir`, which need not exist yet, and nothing before the first event.

    Raises:
        ConfigError: an unknown name, a missing package, or a factory that fails or makes no hook.
    """
    device = resolve_device(config.run.device)
    hooks: list[Hook] = []
    for name in dict.fromkeys(config.logging.hooks):
        state = capture_rng(device)
        hook = _build(name, config, output_dir)
        restore_rng(state, device)
        hooks.append(_Guarded(name, hook, device))
    return hooks


def _build(name: str, config: SpeedtronicConfig, output_dir: Path) -> Hook:
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        hook: Hook = call_factory(
            "logging.hooks",
            name,
            import_factory("logging.hooks", name),
            config,
            output_dir,
            shown={"config": config, "output_dir": output_dir},
        )
        if not callable(getattr(hook, "on_event", None)):
            raise ConfigError(
                f"logging.hooks names {name!r}, whose {type(hook).__name__} has no on_event"
            )
        return hook
    if name not in _BUILT_IN:
        near = difflib.get_close_matches(name, _BUILT_IN, n=1)
        hint = "".join(f"did you mean {known!r}? " for known in near)
        raise ConfigError(
            f"logging.hooks names {name!r}, which is no hook; {hint}allowed are "
            f"{', '.join(_BUILT_IN)} and package.module:factory"
        )
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # a folder of that name, such as W&B's own, is none
        raise ConfigError(
            f"logging.hooks names {name!r}, which is not installed; "
            f"pip install 'speedtronic-flows[{name}]'"
        )
    return _BUILT_IN[name](output_dir)


class _Guarded:
    """Wraps a hook: drops it after an exception, and restores the random state after each call."""

    def __init__(self, name: str, hook: Hook, device: torch.device) -> None:
        self._name = name
        self._hook: Hook | None = hook
        self._device = device

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        if self._hook is None:
            return
        state = capture_rng(self._device)
        try:
            self._hook.on_event(event, dict(payload))
        except Exception as error:
            logger.warning(
                f"hook {self._name} failed on {event} and is left out from here on; "
                f"training goes on: {type(error).__name__}: {error}",
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )
            self._hook = None
        finally:
            restore_rng(state, self._device)


class TensorBoard:
    """Writes scalars for TensorBoard to `<output_dir>/tensorboard`.

    A resumed run opens a further file that begins with the mark by which TensorBoard drops what
    was logged after the checkpoint. Each scalar reaches the kernel before the call returns, so a
    killed process loses none; after a power failure the last ones may be missing.
    """

    def __init__(self, output_dir: Path) -> None:
        self._folder = output_dir / "tensorboard"
        self._step = 0
        self._writer: Any = None

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Write scalars; the first ones open the file, so a run that trains nothing leaves none."""
        if event == "run_started":
            self._step = payload["step"]
        elif event in ("train_step", "validation"):
            self._writer = self._writer or self._open()
            for name, value in _scalars(payload).items():
                self._writer.add_scalar(name, value, payload["step"])
            self._writer.flush()
        elif event == "run_ended" and self._writer:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # half a second to import

        # Files are read in the order of their names, which begin with the second they were made.
        made = [file.name.split(".")[3] for file in self._folder.glob("events.out.tfevents.*")]
        if str(int(time.time())) in made:
            time.sleep(1)
        return SummaryWriter(log_dir=str(self._folder), purge_step=self._step + 1)


class WandbOffline:
    """Logs to Weights & Biases offline, in `<output_dir>/wandb`; `wandb sync` uploads it.

    One id for the whole run; each process that trains writes a segment, `offline-run-*-<id>`. It
    can be neither rewound nor read back, and a killed process takes the last seconds of it along.
    So that each step is in exactly one segment, wherever the process was killed:

    - `wandb-rows.jsonl` holds every row, rewound like the metrics file when a run resumes;
    - `wandb-run.json` holds the id, the highest step in finished segments, and the name of the
      open segment. It is written after the segment is opened, and again after it is finished.
    - A start that finds a segment still open moves it to `wandb/unfinished` and logs its rows up
      to the checkpoint again, from the file. Those after it come again from training.
    - Steps in finished segments are not logged again, which loses nothing: a resumed run repeats
      them to the bit. A run that starts at step 0 has nothing to go on with, and gets a new id.
    """

    def __init__(self, output_dir: Path) -> None:
        self._folder = output_dir
        self._record_path = output_dir / "wandb-run.json"
        self._started: dict[str, Any] = {}
        self._record: dict[str, Any] = {}
        self._rows: JsonLines | None = None
        self._run: Any = None

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Log rows; the first one opens a segment, so a run that trains nothing leaves none."""
        if event == "run_started":
            self._started = payload
            if self._read_record().get("open_segment"):
                self._open()  # what a killed process took along may be missing even if none follow
        elif event in ("train_step", "validation"):
            if self._run is None:
                self._open()
            assert self._rows is not None
            row = {"step": payload["step"], "values": _scalars(payload)}
            self._rows.on_event("row", row)
            self._log(row)
        elif event == "checkpoint_saved" and self._rows:
            self._rows.sync()
        elif event == "run_ended" and self._run:
            self._close(payload["step"])

    def _log(self, row: dict[str, Any]) -> None:
        if row["step"] > self._record["finished_step"]:
            self._run.log(row["values"], step=row["step"])

    def _open(self) -> None:
        import wandb  # over half a second to import

        step, config = self._started["step"], self._started["config"]
        rows = self._folder / "wandb-rows.jsonl"
        before = self._read_record()
        self._set_aside(before.get("open_segment"))
        fresh: dict[str, Any] = {"id": secrets.token_hex(4), "finished_step": 0}
        self._record = before if before and step > 0 else fresh
        self._rows = JsonLines(rows)
        self._rows.rewind(step)
        if f"-{os.getpid()}-" not in os.environ.get("WANDB_SERVICE", ""):
            os.environ.pop("WANDB_SERVICE", None)  # a parent's still holds a killed process's id
        self._run = wandb.init(
            project="speedtronic",
            name=config["run"]["name"],
            id=self._record["id"],
            config=config,
            dir=str(self._folder),
            mode="offline",
            resume="allow",
            reinit="create_new",  # leaves alone a run that the caller's own code may have open
            settings=wandb.Settings(console="off", silent=True),
        )
        self._write_record(open_segment=Path(self._run.dir).parent.name)
        for row in read_events(rows, "row"):
            self._log({**row, "values": _scalars(row["values"])})

    def _close(self, step: int) -> None:
        assert self._rows is not None
        self._run.finish()
        step = max(step, self._record["finished_step"])
        self._write_record(open_segment=None, finished_step=step)
        self._rows.close()
        self._run = self._rows = None

    def _set_aside(self, segment: str | None) -> None:
        folder = self._folder / "wandb"
        if segment and (folder / segment).exists():
            (folder / "unfinished").mkdir(exist_ok=True)
            (folder / segment).rename(folder / "unfinished" / segment)

    def _read_record(self) -> dict[str, Any]:
        try:
            return read_json(self._record_path)
        except FileNotFoundError:
            return {}

    def _write_record(self, **changes: Any) -> None:
        self._record = {**self._record, **changes}
        replace_text(self._record_path, strict_json(self._record))


def _scalars(payload: dict[str, Any]) -> dict[str, float]:
    return {name: payload[name] for name in SCALARS if payload.get(name) is not None}


_BUILT_IN: dict[str, Callable[[Path], Hook]] = {"tensorboard": TensorBoard, "wandb": WandbOffline}
