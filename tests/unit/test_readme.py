"""README names every file that is there, and nothing else; links in documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tree() -> list[str]:
    """The paths in README's tree; a folder ends with a slash."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("## What is where")[2].split("```")[1]
    paths, folders = [], [""]
    for line in block.strip("\n").splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, caption = line.split(maxsplit=1) if " " in line.strip() else (line.strip(), "")
        assert caption or name.endswith("/"), f"{name} has no caption"
        path = folders[depth] + name
        if name.endswith("/"):
            folders[depth + 1 :] = [path]
        paths.append(path)
    return paths


@pytest.mark.parametrize("path", tree())
def test_what_the_tree_names_is_there(path: str) -> None:
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()


@pytest.mark.parametrize("folder", ["speedtronic", "flows", "benchmarks", "configs"])
def test_what_is_there_is_in_the_tree(folder: str) -> None:
    files = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".yaml"} and file.name != "__init__.py"
    }
    assert files <= set(tree())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []
