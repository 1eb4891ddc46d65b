"""What a run does while faults happen: a history, and then what is put to the test."""

from collections.abc import Callable
from dataclasses import dataclass, field

from speedtronic.checkpoint import layout, survey
from tests.robustness.stage import Stage, saved_at

Act = Callable[[Stage], None]


@dataclass(frozen=True)
class Scenario:
    """`before` is undisturbed; faults happen in `act`."""

    name: str
    act: Act
    before: Act = field(default=lambda stage: None)
    keep_last: int = 3
    background: bool = False


def runs(*steps: int, resume: bool = True, fill: float = 0.0) -> Act:
    """One process that resumes and saves at these steps."""

    def act(stage: Stage) -> None:
        process = stage.process()
        try:
            if resume:
                process.resume()
            process.save(*steps, fill=fill)
            process.end()
        finally:
            process.close()

    return act


def both(*acts: Act) -> Act:
    """One after the other."""

    def act(stage: Stage) -> None:
        for each in acts:
            each(stage)

    return act


def rot(*names: str) -> Act:
    """Something spoils these files; the run must do without the newest checkpoint, 6."""

    def act(stage: Stage) -> None:
        for name in names:
            stage.damage(name, f"rot {len(stage.oracle.damaged)} of {name}".encode())
        stage.oracle.goes_on_from(saved_at(4))

    return act


def _save_again_what_rotted(stage: Stage) -> None:
    process = stage.process()
    process.resume()
    stage.damage(layout.payload_name(6))
    stage.oracle.goes_on_from(saved_at(4))
    process.save(6)


def _replace(step: int) -> Act:
    """Save the newest step again in another state, as only a program with a defect would."""

    def act(stage: Stage) -> None:
        stage.oracle.replaces = True
        runs(step, fill=0.5)(stage)
        runs(step + 2)(stage)

    return act


def _look(stage: Stage) -> None:
    """What `speedtronic inspect` does; it changes nothing."""
    before = stage.disk.image()
    survey(stage.storage)
    if stage.disk.image() != before:
        stage.broken.append("a survey changed something")


PAYLOAD, MANIFEST = layout.payload_name(6), layout.manifest_name(6)
HISTORY = runs(2, 4, 6)

SYNCHRONOUS = [
    Scenario("first save", runs(2)),
    Scenario("first save, keep 1", runs(2), keep_last=1),
    Scenario("next save", runs(8), HISTORY),
    Scenario("next save, keep 1", runs(8), HISTORY, keep_last=1),
    Scenario("two saves, keep 1", runs(8, 10), HISTORY, keep_last=1),
    Scenario("save on stop", both(runs(7), runs(8)), HISTORY),
    Scenario("save of the same step again", runs(6, 8), HISTORY),
    Scenario("save of another state", _replace(6), HISTORY),
    Scenario("save of another state, keep 1", _replace(2), runs(2), keep_last=1),
    Scenario("select", runs(), HISTORY),
    Scenario("repair", runs(6), both(HISTORY, rot(PAYLOAD, layout.POINTER))),
    Scenario("repair of the manifest", runs(6), both(HISTORY, rot(MANIFEST))),
    Scenario(
        "second repair", runs(6), both(HISTORY, rot(PAYLOAD), runs(6), rot(PAYLOAD, MANIFEST))
    ),
    Scenario("inspect", _look, both(HISTORY, rot(PAYLOAD))),
    Scenario("save again of what rotted", _save_again_what_rotted, HISTORY),
]
BACKGROUND = [
    Scenario("first save in the background", runs(2), background=True),
    Scenario("saves in the background", runs(8, 10), HISTORY, background=True),
    Scenario("saves in the background, keep 1", runs(8, 10), HISTORY, 1, background=True),
    Scenario("save on stop in the background", both(runs(7), runs(8)), HISTORY, background=True),
]
SCENARIOS = SYNCHRONOUS + BACKGROUND
