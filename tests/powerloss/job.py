"""One kind of file system and of save: recorded, and judged in each state of a power loss."""

import json
import logging
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from speedtronic.recovery import LoadProcess
from tests.powerloss.filesystems import DamagedDisk, FileSystem, mounted
from tests.powerloss.images import Images, copy_sparse
from tests.powerloss.judging import Judge, Promises
from tests.powerloss.recorder import Recording, notes, record
from tests.powerloss.states import CrashState, crash_states, notes_by

LARGE_SHARE = 0.4
RESUMES = {False: 12, True: 30}  # one of so many states is resumed to the end: small, large
NUM_EXAMPLES = 3  # of violations of one job: told, and kept


@dataclass(frozen=True)
class Job:
    """One kind of disk, one kind of save, and what the store leaves out, if anything."""

    kind: FileSystem
    async_save: bool
    num_states: int
    broken: str = ""

    @property
    def how(self) -> str:
        return self.broken or ("async" if self.async_save else "sync")

    @property
    def fault(self) -> str:
        return f"power loss, {self.kind.name}, {self.how}"


@dataclass
class Outcome:
    """What became of a job."""

    fault: str
    states: int = 0
    violated: int = 0
    resumed: int = 0
    mended: int = 0
    hows: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    seconds: float = 0.0


def do(job: Job, place: str, evidence: str) -> Outcome:
    """Record and judge; everything is below `place`, but for the evidence."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    started, outcome = time.monotonic(), Outcome(job.fault)
    for large in (False, True):
        share = round(job.num_states * LARGE_SHARE)
        wanted = share if large else job.num_states - share
        if job.broken and large:
            continue
        with tempfile.TemporaryDirectory(dir=place, prefix="disk-") as folder:
            recording = record(
                job.kind,
                Path(folder),
                large=large,
                async_save=job.async_save,
                broken=job.broken,
            )
            kept = None if job.broken else Path(evidence) / _file_name(job.fault)
            _judge(recording, wanted, RESUMES[large], outcome, kept)
    outcome.seconds = time.monotonic() - started
    return outcome


def _judge(
    recording: Recording, wanted: int, resume_each: int, outcome: Outcome, evidence: Path | None
) -> None:
    intervals, noted = recording.log.intervals(), notes(recording)
    states = crash_states(intervals, wanted, random.Random(0), recording.kind.whole_at)
    images = Images(recording.base, recording.log, recording.base.parent)
    final = Promises(noted)
    with LoadProcess() as loader:
        digest = final.digests[recording.config.run.max_steps]
        judge = Judge(recording.config, recording.files, digest, loader)
        for number, state in enumerate(states):
            promises = Promises([json.loads(text) for text in notes_by(intervals, state)])
            resume = number % resume_each == 0
            image = images.crashed(state)
            try:
                place = recording.mountpoint
                with mounted(recording.kind, image, place, crashed=True) as mended:
                    outcome.mended += mended
                    found = judge.broken(promises, resume=resume)
            except DamagedDisk as error:
                found = [str(error)]
            outcome.states += 1
            outcome.resumed += resume
            outcome.hows[state.how] += 1
            if found:
                outcome.violated += 1
                _keep(recording, images, state, promises, found, outcome, evidence)


def _keep(
    recording: Recording,
    images: Images,
    state: CrashState,
    promises: Promises,
    found: list[str],
    outcome: Outcome,
    evidence: Path | None,
) -> None:
    """The image as the power loss left it, the log, and what is wrong, for somebody to look at."""
    if len(outcome.examples) >= NUM_EXAMPLES:
        return
    size = "large" if recording.large else "small"
    name = f"{size}, interval {state.interval}, {state.how}, {len(state.kept)} writes kept"
    if evidence is None:
        outcome.examples.append(f"{name}: {'; '.join(found)}")
        return
    folder = evidence / _file_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    copy_sparse(images.crashed(state), folder / "image")
    if not (log := evidence / f"log-{size}").exists():
        shutil.copyfile(recording.log.path, log)
    text = [f"{outcome.fault}: {name}", f"{state}", f"acknowledged: {promises.acknowledged}"]
    text += ["", *found, "", f"mount -o loop {folder}/image /mnt"]
    (folder / "description.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    outcome.examples.append(f"{name}: {'; '.join(found)}; see {folder}")


def _file_name(words: str) -> str:
    return words.replace(", ", "-").replace(" ", "-")
