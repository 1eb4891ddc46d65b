"""Lists every configuration key: one frozen class for each section, with defaults and rules."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from speedtronic.config.fields import (
    DERIVED,
    Arguments,
    BelowOne,
    Count,
    Float,
    LevelName,
    Names,
    NonNegative,
    NonNegativeInt,
    ObjectName,
    Pair,
    Path,
    Positive,
    Section,
    Seed,
    TextPath,
    plain_copy,
    require_rules,
    set_derived,
)
from speedtronic.redaction import format_value, redact


class RunConfig(Section):
    name: str = "speedtronic"
    """Label of the run in reports and in Prefect."""
    seed: Seed = 1234
    """Seed of initial weights, dropout and, unless data.seed is given, of the order of samples."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto takes the first of cuda, mps and cpu that is there."""
    max_steps: Count = 1000
    """Optimizer updates after which the run is complete."""
    output_dir: Path = "runs"
    """Folder or file:// URL of everything the run writes."""


REFERENCE_MODEL = "reference_transformer"


class ModelConfig(Section):
    # A user's own model takes any other key; its factory decides which.
    model_config = ConfigDict(extra="allow")

    name: str = REFERENCE_MODEL
    """The reference model, a name given to `register_model`, or `package.module:factory`, which is
    called with the other keys that are given here."""
    vocab_size: Count = 512
    """Number of distinct tokens; text is read as bytes and needs 256."""
    max_seq_len: Count = 128
    """Longest sequence, in tokens."""
    n_layer: Count = 4
    """Number of transformer blocks."""
    n_head: Count = 8
    """Number of query heads."""
    n_kv_head: Count = DERIVED
    """Number of key and value heads, a divisor of n_head; null means n_head."""
    d_model: Count = 256
    """Width of the residual stream; n_head heads of an even width."""
    d_ff: Count = DERIVED
    """Nominal width of the feed-forward layer; null means 4 * d_model. SwiGLU has three matrices in
    place of two, so each is two thirds as wide."""
    dropout: BelowOne = 0.0
    """Probability of dropping an activation while training."""
    tie_weights: bool = True
    """Whether the embedding and the output layer share one matrix."""
    rope_base: Positive = 10000.0
    """Base of the wavelengths of the rotary position embedding."""

    @model_validator(mode="before")
    @classmethod
    def _take_plain(cls, given: Any) -> Any:
        """Copy the keys of a user's model, and refuse values that a checkpoint cannot hold."""
        if not isinstance(given, Mapping):
            return given
        own = {key: value for key, value in given.items() if key not in cls.model_fields}
        for key, value in own.items():
            try:
                own[key] = plain_copy(value)
            except ValueError as error:
                raise ValueError(
                    f"model.{key} is {format_value(redact(value, key))}; it {error}"
                ) from None
        return {**given, **own}

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        set_derived(self, n_kv_head=self.n_head, d_ff=4 * self.d_model)
        if not self.is_reference:
            return self
        heads, width = self.n_head, self.d_model
        require_rules(
            (
                heads % self.n_kv_head == 0,
                f"model.n_kv_head is {self.n_kv_head}; it must divide model.n_head, {heads}",
            ),
            (
                width % heads == 0,
                f"model.d_model is {width}; it must be a multiple of model.n_head, {heads}",
            ),
            (
                width % heads != 0 or width // heads % 2 == 0,
                f"model.d_model is {width}; over model.n_head, {heads}, that is {width // heads} "
                "per head, which must be even for rotary positions",
            ),
        )
        return self

    @property
    def is_reference(self) -> bool:
        """Whether the model is the reference transformer of this package."""
        return self.name == REFERENCE_MODEL

    def factory_arguments(self) -> dict[str, Any]:
        """Return the given keys except `name`: the keyword arguments of a model factory."""
        return self.model_dump(exclude_unset=True, exclude={"name"})


class DataConfig(Section):
    text_path: TextPath | None = None
    """Text to train on: a file, a glob or a list of them.

    `{stdlib}` inside stands for the standard library folder of the running Python.
    """
    tokenizer: ObjectName | None = None
    """What turns text into token ids, by its `encode` or as a function; null means bytes."""
    encoding_errors: Literal["strict", "replace", "skip"] = "strict"
    """What becomes of a file that is not UTF-8, beside a tokenizer: strict refuses it, replace puts
    U+FFFD for each wrong byte, skip leaves the file out."""
    dataset: ObjectName | None = None
    """A factory of samples: a map-style or iterable dataset, or a loader of batches."""
    dataset_args: Arguments = Field(default_factory=dict)
    """Keyword arguments for the factory."""
    synthetic: bool = DERIVED
    """Whether to train on generated tokens; null means true unless other data are given."""
    num_tokens: Annotated[int, Field(ge=2)] | None = None
    """Tokens to generate or to take of the text; null leaves it to the source."""
    block_size: Count = DERIVED
    """Length of one sample, in tokens; null means model.max_seq_len."""
    micro_batch_size: Count = 1
    """Samples in one forward and backward pass."""
    target_batch_size: Count = 1
    """Samples in one optimizer update, a multiple of micro_batch_size."""
    num_workers: NonNegativeInt = 0
    """Number of processes that load data; 0 loads in the training process."""
    prefetch_factor: Count | None = None
    """Batches that each worker loads ahead; null leaves it to PyTorch."""
    pin_memory: bool | None = None
    """Whether to load into page-locked memory; null means on CUDA only."""
    shuffle: bool = False
    """Whether each epoch has an order of its own."""
    drop_last: bool = True
    """Whether to leave out the samples of an epoch that do not fill an update."""
    seed: Seed = DERIVED
    """Seed of the order of samples; null means run.seed."""

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        set_derived(self, synthetic=self.text_path is None and self.dataset is None)
        micro, target = self.micro_batch_size, self.target_batch_size
        require_rules(
            (
                self.synthetic or self.text_path is not None or self.dataset is not None,
                "data.synthetic is false; then data.text_path must name the text to train on, or "
                "data.dataset a factory of samples",
            ),
            (
                not self.synthetic or self.text_path is None,
                "data.synthetic is true and data.text_path is given; leave one of them out",
            ),
            (
                self.dataset is None or (self.text_path is None and not self.synthetic),
                f"data.dataset is {self.dataset!r}; then data.text_path must be null and "
                "data.synthetic not true",
            ),
            (
                self.tokenizer is None or self.text_path is not None,
                f"data.tokenizer is {self.tokenizer!r}; it is for data.text_path, which is null",
            ),
            (
                self.encoding_errors == "strict" or self.tokenizer is not None,
                f"data.encoding_errors is {self.encoding_errors!r}; it is for data.tokenizer, "
                "which is null: without one, text is read as bytes",
            ),
            (
                target % micro == 0,
                f"data.target_batch_size is {target}; "
                f"it must be a multiple of data.micro_batch_size, {micro}",
            ),
            (
                self.prefetch_factor is None or self.num_workers > 0,
                f"data.prefetch_factor is {self.prefetch_factor}; "
                "it must be null while data.num_workers is 0",
            ),
        )
        return self


class ValidationConfig(Section):
    every_steps: Count | None = None
    """Updates from one validation to the next; null means none."""
    text_path: TextPath | None = None
    """Held-out text, as data.text_path."""
    dataset: ObjectName | None = None
    """A factory of held-out samples, as data.dataset; map-style."""
    dataset_args: Arguments = Field(default_factory=dict)
    """Keyword arguments for the factory."""
    max_batches: Count | None = None
    """Most micro batches to evaluate; null means all."""

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        sources = (self.text_path is not None) + (self.dataset is not None)
        require_rules(
            (
                sources == (self.every_steps is not None),
                "validation needs every_steps and one of text_path and dataset, or none of them",
            )
        )
        return self


class OptimizerConfig(Section):
    name: Literal["adamw", "muon"] = "adamw"
    """AdamW, or Muon for the matrices of the hidden layers with AdamW for the rest."""
    lr: Positive = 3e-4
    """Peak learning rate."""
    betas: Pair = (0.9, 0.95)
    """Decay rates of the running means of the gradient and of its square."""
    eps: Positive = 1e-8
    """Term added to the denominator for numerical stability."""
    weight_decay: NonNegative = 0.1
    """Decoupled weight decay."""
    fused: bool | None = None
    """Whether to use the fused kernel; null leaves it to PyTorch."""
    grad_clip: Positive | None = None
    """Largest norm of the whole gradient; null means no clipping."""


class SchedulerConfig(Section):
    name: Literal["cosine", "constant"] = "cosine"
    """Shape of the learning rate after the warm-up."""
    warmup_steps: NonNegativeInt = 100
    """Updates over which the learning rate rises linearly to optimizer.lr."""
    max_steps: Count | None = None
    """Updates at which the decay ends; null means the run's max_steps when it starts."""
    min_lr_ratio: Annotated[Float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end of the decay, as a fraction of optimizer.lr."""


class PrecisionConfig(Section):
    mode: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number format of the forward pass; auto takes the best that the device supports."""


class CheckpointConfig(Section):
    enabled: bool = True
    """Whether to write checkpoints."""
    directory: Path = "checkpoints"
    """Folder or URL of the checkpoints; a relative one lies under run.output_dir."""
    every_steps: Count = 100
    """Updates from one checkpoint to the next."""
    keep_last: Count | None = 3
    """Number of newest checkpoints to keep; null keeps all."""
    keep_best: Count | None = None
    """Number of checkpoints with the lowest validation loss to keep besides; null means none."""
    keep_every: Count | None = None
    """Keep besides those whose step this divides; null means none."""
    async_save: bool = True
    """Whether training goes on while a checkpoint is written, for as much host memory again."""
    resume: bool = False
    """Whether to go on from the newest good checkpoint."""
    save_on_stop: bool = False
    """Whether to save at the last step too when it is no multiple of every_steps."""


class ChunkConfig(Section):
    steps: Count = DERIVED
    """Updates in one chunk, a multiple of checkpoint.every_steps, which is also what null means."""
    retries: NonNegativeInt = 3
    """Attempts in a row without a new checkpoint, after the first, before the chunk fails."""
    quarantine_after: Count = 3
    """Deaths in a row after loading a checkpoint until it is set aside and the one before tried."""
    retry_delay_s: NonNegative = 1.0
    """Pause before a retry, in seconds."""
    hang_timeout_s: Positive = 1800.0
    """Seconds without progress of any kind after which the worker is killed: see docs/resume.md."""
    standby: bool = True
    """Keep a process with torch imported, so that a killed worker is back at once; Linux only."""


class LoggingConfig(Section):
    level: LevelName = "INFO"
    """Least severe messages to show, in upper or lower case."""
    file: Path | None = None
    """File for the messages too; a relative one lies under run.output_dir; null means none."""
    json_file: Path | None = "metrics.jsonl"
    """File of metrics, one JSON object per line; relative as above; null means none."""
    every_steps: Count = 10
    """Updates from one line of metrics to the next."""
    hooks: Names = ()
    """What else is told of events: `tensorboard`, `wandb` (offline), `package.module:factory`."""


TRAJECTORY: dict[str, tuple[str, ...]] = {
    "run": ("seed",),
    "data": (
        "text_path",
        "tokenizer",
        "dataset",
        "dataset_args",
        "synthetic",
        "num_tokens",
        "block_size",
        "target_batch_size",
        "shuffle",
        "drop_last",
        "seed",
    ),
    "optimizer": ("name", "lr", "betas", "eps", "weight_decay", "grad_clip"),
    "scheduler": ("name", "warmup_steps", "max_steps", "min_lr_ratio"),
    "precision": ("mode",),
}
"""Keys that change the numbers a run computes, besides all of `model`; the others change only where
and how fast it runs."""
