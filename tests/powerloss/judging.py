"""What a process that starts after the power loss finds, and whether that is what was promised."""

import json
from pathlib import Path
from typing import Any

import yaml

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import CheckpointStore, open_storage
from speedtronic.checkpoint.candidates import read_pointer
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.quarantine import quarantined
from speedtronic.errors import SpeedtronicError
from speedtronic.plan import first_saves
from speedtronic.recovery import LoadProcess, run_checklist
from speedtronic.runtime import train_from_config
from tests.recipes import newest

OF_THE_CLOCK = {"tokens_per_s"}


class Promises:
    """What had been said of saves when the power went.

    Args:
        noted: see `training`; oldest first.

    Attributes:
        acknowledged: the newest step of which `save` had returned; 0 for none.
        digests: step -> state digest, of all that anybody had begun to save.
        reported: whether a report had been written.
    """

    def __init__(self, noted: list[dict[str, Any]]) -> None:
        self.acknowledged = max((each["saved"] for each in noted if "saved" in each), default=0)
        self.digests = {each["saving"]: each["state_digest"] for each in noted if "saving" in each}
        self.reported = any("reported" in each for each in noted)


class Judge:
    """Looks at what is left of a run, as those do who come after a power loss.

    Args:
        config: of the run.
        files: its own files as the undisturbed run left them.
        final: the state digest it ended with.
        loader: for verify.
    """

    def __init__(
        self, config: SpeedtronicConfig, files: dict[str, bytes], final: str, loader: LoadProcess
    ) -> None:
        self._config = config
        self._folder = Path(config.run.output_dir)
        self._files = files
        self._final = final
        self._loader = loader
        self._lines = _train_steps(files["metrics.jsonl"])

    def broken(self, promises: Promises, *, resume: bool) -> list[str]:
        """The promises that do not hold; select mends what is there, `resume` trains to the end."""
        found = self._own_files(promises)
        try:
            found += self._pointer(promises)
            verified = self._verified()
            step, problems = self._selected(promises)
            if verified is not ... and verified != (step or None):
                found.append(f"verify says step {verified}, select took {step}")
            found += problems
            found += self._metrics(step)
            if resume:
                found += self._resumed()
        except (SpeedtronicError, OSError) as error:
            found.append(f"{type(error).__name__}: {error}")
        return found

    def _own_files(self, promises: Promises) -> list[str]:
        found = []
        for name, parse in {
            "config.yaml": yaml.safe_load,
            "run.json": json.loads,
            "report.json": json.loads,
        }.items():
            path = self._folder / name
            if not path.exists():
                if promises.acknowledged and name == "config.yaml":
                    found.append(f"{name} is missing")
                if promises.reported and name == "report.json":
                    found.append(f"{name} is missing")
                continue
            content = path.read_bytes()
            try:
                value = parse(content)
            except ValueError as error:
                found.append(f"{name} cannot be parsed: {error}")
                continue
            except yaml.YAMLError as error:
                found.append(f"{name} cannot be parsed: {error}")
                continue
            if not isinstance(value, dict):
                found.append(f"{name} is empty")
            elif name != "report.json" and content != self._files[name]:
                found.append(f"{name} is not what was written")
        return found

    def _pointer(self, promises: Promises) -> list[str]:
        """`save` returns the pointer now on disk, so there it must be."""
        pointer = read_pointer(open_storage(self._config.checkpoint_dir)).pointer
        named = pointer.step if pointer else 0
        if named >= promises.acknowledged:
            return []
        return [f"the pointer names step {named}, acknowledged was {promises.acknowledged}"]

    def _verified(self) -> Any:
        """The step that verify says a resume would start from; `...` where no run is yet."""
        if not self._folder.exists():
            return ...
        report = run_checklist(str(self._folder), loader=self._loader)
        return report.selected

    def _selected(self, promises: Promises) -> tuple[int, list[str]]:
        found, steps = [], []
        for _ in range(2):
            section = self._config.checkpoint
            store = CheckpointStore(
                open_storage(self._config.checkpoint_dir),
                keep_last=2,
                first_saves=first_saves(
                    every_steps=section.every_steps, save_on_stop=section.save_on_stop
                ),
            )
            checkpoint = store.select()
            step = checkpoint.manifest.step if checkpoint else 0
            steps.append(step)
            if step < promises.acknowledged:
                found.append(f"selected step {step}, acknowledged was {promises.acknowledged}")
            if checkpoint and state_digest(checkpoint.state) != promises.digests.get(step):
                found.append(f"step {step} is not what was saved")
        if steps[0] != steps[1]:
            found.append(f"selecting twice gives steps {steps}")
        rejected = quarantined(open_storage(self._config.checkpoint_dir))
        if rejected and steps[0]:  # before any, the first save goes there when it was cut short
            found.append(f"a power loss damages no file, but rejected were {rejected}")
        return steps[0], found

    def _metrics(self, step: int) -> list[str]:
        path = self._folder / "metrics.jsonl"
        left = path.read_bytes() if path.exists() else b""
        expected = [line for line in self._lines if line["step"] <= step]
        if _train_steps(left)[: len(expected)] != expected:
            return [f"metrics.jsonl lacks lines up to step {step}"]
        return []

    def _resumed(self) -> list[str]:
        train_from_config(self._config, resume=True)
        found = []
        if (digest := newest(self._config).state_digest) != self._final:
            found.append(f"resumed to the end: {digest}, expected {self._final}")
        lines = _train_steps((self._folder / "metrics.jsonl").read_bytes())
        if _timeless(lines) != _timeless(self._lines):
            found.append("resumed to the end: metrics.jsonl differs")
        return found


def _train_steps(content: bytes) -> list[dict[str, Any]]:
    """The steps in a metrics file, up to the first line that is not whole."""
    found = []
    for line in content.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            break
        if event["event"] == "train_step":
            found.append(event)
    return found


def _timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in OF_THE_CLOCK} for line in lines]
