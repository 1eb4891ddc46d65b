"""Builds one frozen `SpeedtronicConfig` from YAML, JSON or a dict, and overrides its keys."""

import json
import os
import posixpath
from collections.abc import Mapping
from typing import Any, Self

import xxhash
from pydantic import Field, ValidationError, model_validator

from speedtronic.config.fields import Section, require_rules, set_derived
from speedtronic.config.overrides import (
    FLAGS,
    SHORTCUTS,
    expand_shortcuts,
    is_user_key,
    set_nested,
)
from speedtronic.config.parsing import is_written_by_run, parse_file, parse_text
from speedtronic.config.problems import explain_problem, unknown_key
from speedtronic.config.references import expand_path
from speedtronic.config.sections import (
    TRAJECTORY,
    CheckpointConfig,
    ChunkConfig,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
    SchedulerConfig,
    ValidationConfig,
)
from speedtronic.config.yaml_text import write_yaml
from speedtronic.errors import ConfigError
from speedtronic.redaction import format_value, redact, register_secrets


class SpeedtronicConfig(Section):
    """The configuration of one run, validated and with every default filled in.

    Create one with `load`, `from_dict` or `override`. They raise ConfigError with one line for each
    problem, where the bare constructor raises pydantic's ValidationError.
    """

    run: RunConfig = Field(default_factory=RunConfig)
    """What to run, where, how far."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The network."""
    data: DataConfig = Field(default_factory=DataConfig)
    """Samples and their order."""
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    """Held-out samples and when to look at them."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """The update rule."""
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    """The learning rate over time."""
    precision: PrecisionConfig = Field(default_factory=PrecisionConfig)
    """Number formats."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """When and where state is saved."""
    chunk: ChunkConfig = Field(default_factory=ChunkConfig)
    """How a run is split and retried."""
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    """Messages and metrics."""
    compile: bool = False
    """Whether to run the model through torch.compile; faster, and not exact to the bit."""
    gradient_checkpointing: bool = False
    """Whether the model computes activations again in the backward pass, to save memory."""

    @model_validator(mode="before")
    @classmethod
    def _expand_shortcuts(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        short = {key: given[key] for key in SHORTCUTS if key in given}
        rest = {key: value for key, value in given.items() if key not in short}
        run = {} if rest.get("run") is None else rest["run"]
        if not short or not isinstance(run, Mapping):
            return rest
        require_rules(
            *(
                (
                    run.get(key, value) == value,
                    f"{key} is {format_value(value)} but run.{key}, which means the same, is "
                    f"{format_value(run.get(key))}; leave one of them out",
                )
                for key, value in short.items()
            )
        )
        return {**rest, "run": {**run, **short}}

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        # Change copies: a section that was passed in as an object belongs to the caller.
        data, chunk = self.data.model_copy(), self.chunk.model_copy()
        longest, every = self.model.max_seq_len, self.checkpoint.every_steps
        set_derived(data, block_size=longest, seed=self.run.seed)
        set_derived(chunk, steps=every)
        self.__dict__.update(data=data, chunk=chunk)
        require_rules(
            (
                data.block_size <= longest,
                f"data.block_size is {data.block_size}; "
                f"it must be at most model.max_seq_len, {longest}",
            ),
            (
                data.text_path is None
                or data.tokenizer is not None
                or self.model.vocab_size >= 256,
                f"model.vocab_size is {self.model.vocab_size}; "
                "it must be at least 256 for data.text_path, which is read as bytes",
            ),
            (
                self.checkpoint.keep_best is None or self.validation.every_steps is not None,
                f"checkpoint.keep_best is {self.checkpoint.keep_best}; it needs "
                "validation.every_steps, which is null",
            ),
            (
                chunk.steps % every == 0,
                f"chunk.steps is {chunk.steps}; "
                f"it must be a multiple of checkpoint.every_steps, {every}",
            ),
        )
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a YAML file, or a JSON one by its suffix `.json`, named by a path or a file:// URL.

        Raises:
            ConfigError: one line for each problem, each with the file's name.
        """
        source = os.fspath(path)
        config = cls._validated(parse_file(source), f"{source}: ")
        if is_written_by_run(source) and (missing := config.missing_sections()):
            raise ConfigError(
                f"{source}: is damaged: a run writes every section there, and it lacks "
                f"{', '.join(missing)}; give the file that the run was begun with"
            )
        return config

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Read the content of a file; errors name it `source`. Raises as `load`."""
        return cls._validated(parse_text(text, source), f"{source}: ")

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | None) -> Self:
        """Validate a nested mapping such as a file holds; None means all defaults."""
        return cls._validated(given)

    @classmethod
    def _validated(cls, given: object, prefix: str = "") -> Self:
        register_secrets(given)
        try:
            config = cls.model_validate({} if given is None else given)
        except ValidationError as error:
            lines = [
                line
                for problem in error.errors()
                for line in explain_problem(problem, _sections(), SHORTCUTS + FLAGS)
            ]
            raise ConfigError("\n".join(prefix + line for line in lines)) from None
        if config.model.is_reference and (extra := config.model.model_extra):
            lines = [unknown_key(("model", key), _sections(), SHORTCUTS + FLAGS) for key in extra]
            raise ConfigError("\n".join(prefix + line for line in lines))
        return config

    def missing_sections(self) -> list[str]:
        """Return the sections and flags that were not given; a run's config.yaml has them all."""
        return [name for name in type(self).model_fields if name not in self.model_fields_set]

    def override(self, changes: Mapping[str, object]) -> Self:
        """Return a new config with `changes`, such as `{"run.max_steps": 4}`, or `{"seed": 5}`.

        They are applied to the values that were given, and defaults that depend on them are derived
        again. A key may reach into a mapping for the user's own code: `data.dataset_args.n`.

        Raises:
            ConfigError: one line for each problem.
        """
        given = self.model_dump(exclude_unset=True)
        for key, value in expand_shortcuts(changes, type(self).model_fields).items():
            section, dot, field = key.partition(".")
            if not dot:
                given[key] = value  # an unknown key, which the validation names
            elif is_user_key(section, field):
                set_nested(given, key, value)
            else:
                given.setdefault(section, {})[field] = value
        return self._validated(given)

    def to_dict(self, redact_secrets: bool = False) -> dict[str, Any]:
        """Return all values, defaults included, as JSON types; `from_dict` reads them back."""
        values = self.model_dump(mode="json")
        if not self.model.is_reference:  # a factory gets the given keys, not our model's defaults
            values["model"] = {"name": self.model.name, **self.model.factory_arguments()}
        return redact(values) if redact_secrets else values

    def to_yaml(self, redact_secrets: bool = False) -> str:
        """Return `to_dict` as YAML."""
        return write_yaml(self.to_dict(redact_secrets))

    def fingerprint(self) -> str:
        """Return `xxh3_128:<hex>` of the values that change the numbers a run computes."""
        values = self.to_dict(redact_secrets=True)  # a reader of the checkpoint has no more
        kept = {name: {key: values[name][key] for key in keys} for name, keys in TRAJECTORY.items()}
        text = json.dumps({**kept, "model": values["model"]}, sort_keys=True, separators=(",", ":"))
        return f"xxh3_128:{xxhash.xxh3_128_hexdigest(text.encode())}"

    def under_output_dir(self, path: str) -> str:
        """Join a relative path to run.output_dir; return an absolute one or a URL as it is.

        Environment variables, `${NAME}`, and a leading `~` are expanded.
        """
        path = expand_path(path)
        return path if "://" in path else posixpath.join(expand_path(self.run.output_dir), path)

    @property
    def checkpoint_dir(self) -> str:
        """Folder or URL of the checkpoints."""
        return self.under_output_dir(self.checkpoint.directory)


def split_target(
    config: SpeedtronicConfig, overrides: Mapping[str, object]
) -> tuple[SpeedtronicConfig, int | None]:
    """Apply `overrides` except run.max_steps, which is validated and returned as the target.

    Only the command line's --max-steps may move the schedule's horizon; for every other caller
    run.max_steps is a target. The target is None if `overrides` has no such key.
    """
    changes = expand_shortcuts(overrides, SpeedtronicConfig.model_fields)
    changed = config.override(changes)
    if "run.max_steps" not in changes:
        return changed, None
    del changes["run.max_steps"]
    return config.override(changes), changed.run.max_steps


def _sections() -> dict[str, list[str]]:
    """Return the keys of each section."""
    return {
        name: list(field.annotation.model_fields)
        for name, field in SpeedtronicConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
