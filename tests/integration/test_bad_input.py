"""What a person can get wrong: one line that says what, where and what is allowed, and no harm."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.cli import main
from speedtronic.errors import RunExistsError
from speedtronic.runtime import train_from_config
from speedtronic.runtime.components import build_components
from tests.tiny import tiny_config, tiny_file, tree

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file and an empty text in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Path("file").write_text("a regular file\n")
    Path("empty.txt").write_text("")
    Path("folder").mkdir()
    return tmp_path


def refusal(argv: list[str], capsys: Capture) -> str:
    """The one line on standard error with which a command is refused, changing nothing."""
    before = tree(Path.cwd())
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert tree(Path.cwd()) == before
    [line] = said.err.splitlines()
    assert line.startswith("speedtronic: ")
    return line


FILES: dict[str, tuple[bytes | None, list[str]]] = {
    "missing": (None, ["run.yaml", "no such file"]),
    "malformed": (b"run: [1, 2\n", ["run.yaml", "line 2"]),
    "not text": (b"\xff\xfe\x00", ["run.yaml", "byte 0", "UTF-8"]),
    "a list": (b"- 1\n", ["run.yaml", "[1]", "mapping"]),
    "unknown key": (b"optimizer: {learning_rate: 1}", ["optimizer.learning_rate", "unknown key"]),
    "misspelt key": (b"optimizer: {weigth_decay: 1}", ["did you mean 'weight_decay'"]),
    "unknown section": (b"optimiser: {lr: 1}", ["optimiser", "did you mean 'optimizer'"]),
    "text for a number": (b"run: {max_steps: many}", ["run.max_steps", "'many'", "integer"]),
    "number out of range": (b"run: {max_steps: 0}", ["run.max_steps", "is 0", "1"]),
    "fraction of a step": (b"run: {max_steps: 1.5}", ["run.max_steps", "1.5", "integer"]),
    "not a number": (b"optimizer: {lr: .nan}", ["optimizer.lr", "nan", "finite"]),
    "unknown choice": (b"precision: {mode: fp8}", ["precision.mode", "'fp8'", "'bf16'"]),
    "unknown device": (b"device: tpu", ["run.device", "'tpu'", "'cuda'"]),
    "scalar for a section": (b"model: 3", ["model", "3", "mapping"]),
    "keep nothing": (b"checkpoint: {keep_last: 0}", ["checkpoint.keep_last", "0", "1"]),
    "heads": (b"model: {d_model: 10, n_head: 3}", ["model.d_model", "10", "model.n_head", "3"]),
    "batches": (
        b"data: {micro_batch_size: 4, target_batch_size: 6}",
        ["data.target_batch_size", "6", "data.micro_batch_size", "4"],
    ),
    "chunks": (
        b"chunk: {steps: 150}\ncheckpoint: {every_steps: 100}",
        ["chunk.steps", "150", "checkpoint.every_steps", "100"],
    ),
    "blocks": (b"data: {block_size: 256}", ["data.block_size", "256", "model.max_seq_len", "128"]),
    "no data": (b"data: {synthetic: false}", ["data.synthetic", "data.text_path"]),
    "unknown model": (b"model: {name: gpt5}", ["model.name", "'gpt5'", "reference_transformer"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_configuration(here: Path, capsys: Capture, name: str) -> None:
    content, said = FILES[name]
    if content is not None:
        Path("run.yaml").write_bytes(content)
    line = refusal(["train", "--config", "run.yaml"], capsys)
    assert all(word in line for word in said), line
    if name != "unknown model":  # which only the registry knows
        assert refusal(["validate", "--config", "run.yaml"], capsys) == line


USES: dict[str, tuple[dict[str, object], list[str]]] = {
    "text missing": ({"data.text_path": "no.txt"}, ["data.text_path", "'no.txt'", "no file"]),
    "pattern without a match": ({"data.text_path": "*.text"}, ["data.text_path", "'*.text'"]),
    "text is a folder": ({"data.text_path": "folder"}, ["'folder'", "folder/**/*.txt"]),
    "text below a file": ({"data.text_path": "file/x"}, ["data.text_path", "'file/x'"]),
    "text empty": ({"data.text_path": "empty.txt"}, ["data.text_path", "empty"]),
    "text too short": ({"data.text_path": "file"}, ["data.text_path", "15 bytes", "17"]),
    "too few tokens": ({"data.num_tokens": 16}, ["data.num_tokens", "16", "17"]),
    "no whole update": (
        {"data.num_tokens": 40, "data.target_batch_size": 8},
        ["data.drop_last", "2", "data.target_batch_size", "8"],
    ),
    "output below a file": ({"run.output_dir": "file/run"}, ["file/run", "is not a directory"]),
    "output is a file": ({"run.output_dir": "file"}, ["run.output_dir", "file is not a directory"]),
    "output elsewhere": ({"run.output_dir": "s3://bucket/run"}, ["s3://bucket/run"]),
    "output on no disk": ({"run.output_dir": "memory://run"}, ["memory://run", "not local"]),
    "checkpoints below a file": (
        {"checkpoint.directory": "{here}/file/checkpoints"},
        ["file/checkpoints", "is not a directory"],
    ),
    "checkpoints are a file": (
        {"checkpoint.directory": "{here}/file"},
        ["checkpoint.directory", "file is not a directory"],
    ),
    "log below a file": ({"logging.file": "{here}/file/log"}, ["logging.file", "file/log"]),
    "metrics below a file": (
        {"logging.json_file": "{here}/file/metrics"},
        ["logging.json_file", "file/metrics"],
    ),
    "metrics are a folder": ({"logging.json_file": "{here}/folder"}, ["folder", "directory"]),
    "device not there": ({"run.device": "cuda"}, ["run.device", "'cuda'", "found: cpu"]),
}


@pytest.mark.parametrize("resume", [False, True], ids=["fresh", "resume"])
@pytest.mark.parametrize("name", USES)
def test_what_is_not_there_or_cannot_be_used(
    here: Path, capsys: Capture, name: str, resume: bool
) -> None:
    changes, said = USES[name]
    filled = {k: v.format(here=here) if isinstance(v, str) else v for k, v in changes.items()}
    options = {"logging.file": "run.log", "run.output_dir": "run", "data.num_tokens": None}
    file = tiny_file(Path("run.yaml"), "run", **{**options, **filled})
    flags = ["--resume"] if resume else []
    line = refusal(["train", "--config", file, *flags], capsys)
    assert all(word in line for word in said), line


ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "no value": (["--set", "optimizer.lr"], ["optimizer.lr", "key=value"]),
    "unknown key": (["--set", "optimizer.rl=1"], ["optimizer.rl", "unknown key"]),
    "wrong type": (["--set", "run.max_steps=many"], ["run.max_steps", "'many'"]),
    "a section": (["--set", "optimizer=1"], ["optimizer", "section"]),
    "not YAML": (["--set", "optimizer.betas=[1"], ["optimizer.betas", "not YAML"]),
    "no steps": (["--max-steps", "0"], ["run.max_steps", "0", "1"]),
    "negative steps": (["--max-steps=-4"], ["run.max_steps", "-4", "1"]),
    "device": (["--device", "cuda"], ["run.device", "'cuda'"]),
    "output directory": (["--output-dir", "file/run"], ["file/run", "is not a directory"]),
    "no output directory": (["--output-dir", ""], ["run.output_dir", "''"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_bad_argument(here: Path, capsys: Capture, name: str) -> None:
    arguments, said = ARGUMENTS[name]
    file = tiny_file(Path("run.yaml"), "run")
    line = refusal(["train", "--config", file, *arguments], capsys)
    assert all(word in line for word in said), line


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["train"],
        ["train", "--config", "run.yaml", "--fast"],
        ["train", "--config", "run.yaml", "--max-steps", "many"],
        ["train", "--config", "run.yaml", "--device", "tpu"],
        ["validate"],
        ["inspect"],
        ["inspect", "a", "b"],
    ],
)
def test_a_wrong_flag(here: Path, capsys: Capture, argv: list[str]) -> None:
    before = tree(here)
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: speedtronic" in capsys.readouterr().err
    assert tree(here) == before


def test_inspecting_what_is_no_directory(here: Path, capsys: Capture) -> None:
    for name in ("missing", "file"):
        assert f"{name} is not a directory" in refusal(["inspect", name], capsys)


# What a run may have left, by the files of it that are gone.
LEFT = {"a whole run": "", "a pointer alone": "step_*", "a payload alone": "*.json"}


@pytest.mark.parametrize("name", LEFT)
def test_a_fresh_run_where_a_run_already_is(here: Path, capsys: Capture, name: str) -> None:
    train_from_config(tiny_config("run"), max_steps=4)
    for file in Path("run/checkpoints").glob(LEFT[name] or "nothing"):
        file.unlink()
    config = tiny_file(Path("run.yaml"), "run", **{"run.seed": 7})
    line = refusal(["train", "--config", config], capsys)
    assert "run/checkpoints" in line
    assert "--resume" in line
    with pytest.raises(RunExistsError):
        train_from_config(tiny_config("run"))


def test_a_run_that_is_being_trained(here: Path, capsys: Capture) -> None:
    from speedtronic.checkpoint import RunLock

    train_from_config(tiny_config("run"), max_steps=4)
    lock = RunLock("run/checkpoints")
    lock.acquire()
    before = tree(here, without=(".lock",))  # that of the output directory is free
    file = tiny_file(Path("run.yaml"), "run")
    assert main(["train", "--config", file, "--resume"]) == 1
    assert "is being trained by pid" in capsys.readouterr().err
    Path(file).unlink()
    assert tree(here, without=(".lock",)) == before
    lock.release()


def test_a_model_the_checkpoint_does_not_fit(here: Path, capsys: Capture) -> None:
    train_from_config(tiny_config("run"), max_steps=4)
    before = tree(here, without=(".lock", "run.yaml"))
    file = tiny_file(Path("run.yaml"), "run", **{"model.d_model": 32})
    assert main(["train", "--config", file, "--resume"]) == 1
    said = capsys.readouterr().err
    assert "fit the model" in said
    assert "[256, 16]" in said and "[256, 32]" in said
    assert tree(here, without=(".lock", "run.yaml")) == before


def test_checkpoints_switched_off(here: Path, capsys: Capture) -> None:
    file = tiny_file(Path("run.yaml"), "run", **{"checkpoint.enabled": False})
    for _ in range(2):
        assert main(["train", "--config", file]) == 0
        assert capsys.readouterr().out.startswith("step 8  samples 32  tokens 512  loss ")
    assert sorted(p.name for p in Path("run").rglob("*")) == [
        ".lock",
        "config.yaml",
        "metrics.jsonl",
    ]


@pytest.mark.parametrize("debug", [False, True])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(here: Path, debug: bool) -> None:
    command = [sys.executable, "-m", "speedtronic", "validate", "--config", "missing.yaml"]
    ended = subprocess.run(
        [*command, *(["--debug"] if debug else [])], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "missing.yaml: no such file" in ended.stderr.splitlines()[-1]
    assert ("Traceback" in ended.stderr) == debug


def test_a_run_that_began_and_ended_while_another_was_built_is_not_mixed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, **{"run.max_steps": 2})

    def build_slowly(config: Any) -> Any:
        monkeypatch.undo()
        train_from_config(config)
        return build_components(config)

    monkeypatch.setattr("speedtronic.runtime.build.build_components", build_slowly)
    with pytest.raises(RunExistsError):
        train_from_config(config)
