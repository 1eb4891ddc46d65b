"""Names: those of the reference page, and none mistaken for them."""

import pytest

from speedtronic.checkpoint import layout
from speedtronic.storage.names import is_temporary, temporary_name


def test_names_sort_as_their_steps_do() -> None:
    steps = [0, 4, 9, 10, 100, layout.MAX_STEP]
    names = [layout.payload_name(step) for step in steps]
    assert names[1] == "step_000000000004.pt"
    assert names == sorted(names)
    assert [layout.step_of(name) for name in names] == steps
    assert [layout.step_of(layout.manifest_name(step)) for step in steps] == steps


@pytest.mark.parametrize(
    "name",
    [
        "latest.json",
        "step_4.pt",
        "step_0000000000004.pt",
        "step_000000000004.pt.tmp",
        "step_000000000004.pt\n",
        "xstep_000000000004.pt",
        "step_00000000000٤.json",
        "step_000000000004.bak",
        ".step_000000000004.pt.tmp-0123456789abcdef",
    ],
)
def test_other_names_are_no_checkpoints(name: str) -> None:
    assert layout.step_of(name) is None


def test_temporaries_are_known_and_never_the_same() -> None:
    made = {temporary_name("latest.json") for _ in range(100)}
    assert len(made) == 100
    assert all(is_temporary(name) for name in made)


@pytest.mark.parametrize("name", ["latest.json", ".lock", ".latest.json.tmp-", ".config.tmp-abc"])
def test_other_names_are_no_temporaries(name: str) -> None:
    assert not is_temporary(name)
