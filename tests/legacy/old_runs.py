"""The runs of Speedtronic 2.0 in `files/`, and today's configuration to go on with them."""

import json
import shutil
from pathlib import Path
from typing import Any

from speedtronic.config import SpeedtronicConfig
from speedtronic.legacy.config import translate

FILES = Path(__file__).parent / "files"
STOPPED_AT = {"tied": 4, "untied": 3, "muon": 1}
END = 12


def old_run(name: str, output_dir: Path, **changes: Any) -> SpeedtronicConfig:
    """Copy a run as 2.0 left it, and return the configuration that goes on with it."""
    shutil.copytree(FILES / name / "checkpoints", output_dir / "checkpoints")
    return config_for(name, output_dir, **changes)


def config_for(name: str, output_dir: Path, **changes: Any) -> SpeedtronicConfig:
    given = json.loads((FILES / name / "config.json").read_text(encoding="utf-8"))
    values, _ = translate(given)
    values["run"]["output_dir"] = str(output_dir)
    values["data"]["text_path"] = str(FILES / "text.txt")
    values["logging"]["every_steps"] = 1
    return SpeedtronicConfig.from_dict(values).override(changes)


def old_losses(name: str) -> dict[int, float]:
    """Step -> loss of the run that 2.0 made without a stop."""
    losses = json.loads((FILES / name / "losses.json").read_text(encoding="utf-8"))
    return dict(enumerate(losses, start=1))


def new_losses(config: SpeedtronicConfig) -> dict[int, float]:
    """Step -> loss, of the steps that were trained here."""
    lines = (Path(config.run.output_dir) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return {e["step"]: e["loss"] for e in events if e.get("event", "train_step") == "train_step"}
