"""Imports run one way, and what a command does not need it does not load."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "speedtronic"

# From the top down, as in docs/architecture.md. What stands on one line does not import each other,
# except that the modules of one package do. A name stands for a module or for a whole package.
LAYERS = [
    ["__init__", "__main__"],
    ["cli"],
    ["flows"],
    ["recovery"],
    ["worker"],
    ["runtime"],
    ["legacy", "report", "plot"],
    ["training", "run_directory"],
    ["checkpoint", "data", "model"],
    ["storage"],
    ["config"],
    ["user_code"],
    ["errors", "liveness", "machine_errors", "plan", "redaction", "shutdown"],
]
LEVEL = {name: -level for level, names in enumerate(LAYERS) for name in names}

# Types only: these sections of the configuration describe what the module is built from.
CONFIG_TYPES = {"config", "config.sections"}


def modules() -> dict[str, Path]:
    """`training.state` -> its file, for every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def layer(module: str) -> str:
    """The name under which the table holds a module: its own, or its package's."""
    return module if module in LEVEL else module.partition(".")[0]


def imports(path: Path, *, typing_only: bool = False) -> Iterator[str]:
    """Full names of what a file imports anywhere, under TYPE_CHECKING or not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for child in block.body
        for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if (id(node) in guarded) != typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(name: str) -> str | None:
    """The module of this package that an import reaches; None for another package's."""
    parts = name.split(".")
    if parts[0] != "speedtronic":
        return None
    known = modules()
    for end in range(len(parts), 1, -1):
        if (module := ".".join(parts[1:end])) in known:
            return module
    return "__init__"


def test_every_module_has_a_layer() -> None:
    unknown = [name for name in modules() if layer(name) not in LEVEL]
    assert unknown == [], "add them to LAYERS, and to the list in docs/architecture.md"
    assert [name for name in LEVEL if name not in modules()] == []


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_what_lies_below_it(module: str) -> None:
    mine = layer(module)
    for name in imports(modules()[module]):
        target = inside(name)
        if target is None or layer(target) == mine:
            continue
        assert LEVEL[layer(target)] < LEVEL[mine], f"{module} imports {name}"
    for name in imports(modules()[module], typing_only=True):
        target = inside(name)
        if target is None or layer(target) == mine or target in CONFIG_TYPES:
            continue
        fine = LEVEL[layer(target)] < LEVEL[mine]
        assert fine, f"{module} imports {name}"


def test_the_architecture_page_has_the_same_list() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.partition("## Layers")[2].split("```")[1]
    assert [line.split(" | ") for line in block.strip().splitlines()] == LAYERS


def test_the_root_is_small() -> None:
    assert len(LAYERS) <= 13
    loose = [path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    assert len(loose) <= 10


def test_the_rule_would_notice(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from speedtronic.config.config import SpeedtronicConfig\n"
        "from speedtronic.checkpoint import Pointer\n"
        "def f():\n    import speedtronic.runtime.build\n"
    )
    assert list(imports(file)) == [
        "typing.TYPE_CHECKING",
        "speedtronic.checkpoint.Pointer",
        "speedtronic.runtime.build",
    ]
    assert list(imports(file, typing_only=True)) == ["speedtronic.config.config.SpeedtronicConfig"]
    assert inside("speedtronic.checkpoint.Pointer") == "checkpoint"
    assert inside("speedtronic.training.trainer.Trainer") == "training.trainer"
    assert inside("speedtronic.SpeedtronicConfig") == "__init__"
    assert inside("torch.nn") is None


@pytest.mark.parametrize("module", modules())
def test_only_the_flows_import_prefect(module: str) -> None:
    path = modules()[module]
    found = [*imports(path), *imports(path, typing_only=True)]
    assert layer(module) == "flows" or not [x for x in found if x.partition(".")[0] == "prefect"]


@pytest.mark.parametrize("module", modules())
def test_only_storage_imports_fsspec(module: str) -> None:
    found = [name for name in imports(modules()[module]) if name.partition(".")[0] == "fsspec"]
    assert bool(found) == (module == "storage.urls")


LOADED = "import sys; print([name for name in {names} if name in sys.modules])"


@pytest.mark.parametrize(
    ("code", "unloaded"),
    [
        ("import speedtronic", ["prefect", "torch", "fsspec"]),
        ("import speedtronic.cli", ["prefect", "torch"]),
        (
            "import speedtronic.runtime.build, speedtronic.worker.chunk, speedtronic.report",
            ["prefect"],
        ),
        (
            "from speedtronic.cli import main; "
            "assert main(['validate', '--config', 'configs/smoke.yaml']) == 0",
            ["prefect", "torch"],
        ),
    ],
)
def test_what_is_not_needed_is_not_loaded(code: str, unloaded: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LOADED.format(names=unloaded)}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_same_way_to_look_would_notice() -> None:
    code = f"import speedtronic.runtime.build\n{LOADED.format(names=['torch'])}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout == "['torch']\n"
