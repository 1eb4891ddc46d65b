"""Defines the options of a start, for the command line, Python and the flow alike."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import UsageError


@dataclass(frozen=True)
class StartOptions:
    """Says where a run starts, and what it may differ in from its checkpoint.

    `build_runtime` and `train_from_config` take these as keyword arguments too.

    Attributes:
        resume: go on from the newest good checkpoint if there is one; also `checkpoint.resume`.
        init_from: a `.pt` of ours or a `.safetensors` file whose weights a fresh run takes.
        fork_from: another run's directory of checkpoints and the step in it, from which a fresh run
            takes the whole state.
        allow_changes: keys, such as `optimizer.lr`, that may differ from the run's checkpoint.
        schedule_max_steps: moves the schedule's horizon, on a resumed run too.
        target: step to which the caller will train, instead of `run.max_steps`; a fresh run without
            `scheduler.max_steps` ends its schedule there if that is later.
        trust_legacy: with `resume`, migrate a run of Speedtronic 2.0 first; see docs/migration.md.
        reject: with `resume`, the step of a checkpoint to quarantine first, and why.
    """

    resume: bool = False
    init_from: str | None = None
    fork_from: tuple[str, int] | None = None
    allow_changes: Sequence[str] = ()
    schedule_max_steps: int | None = None
    target: int | None = None
    trust_legacy: bool = False
    reject: tuple[int, str] | None = None

    def with_config(self, config: SpeedtronicConfig) -> "StartOptions":
        """Return these options with `checkpoint.resume` counted in.

        Raises:
            UsageError: two of them contradict each other.
        """
        resolved = replace(self, resume=self.resume or config.checkpoint.resume)
        if resolved.init_from is not None and resolved.fork_from is not None:
            raise UsageError("--init-from and --fork-from both say where a run starts; give one")
        if resolved.trust_legacy and not resolved.resume:
            raise UsageError("--trust-legacy is for going on with a run; give --resume with it")
        return resolved
