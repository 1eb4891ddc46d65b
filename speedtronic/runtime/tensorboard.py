"""Writes metrics for TensorBoard."""

import time
from pathlib import Path
from typing import Any

from speedtronic.training.metrics import scalar_fields


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
            for name, value in scalar_fields(payload).items():
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
