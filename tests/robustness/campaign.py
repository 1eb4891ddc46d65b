"""The long version: `make robustness`. One JSON line for every kind of fault.

Fails when something did not hold, when a kind of fault never happened, or when there were too few.
"""

import json
import logging
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from tests.buckets import s3_server
from tests.robustness.bucket import AT_REQUEST, Bucket, S3Bucket
from tests.robustness.failpoints import AT
from tests.robustness.fuzz import KINDS as FUZZED
from tests.robustness.fuzz import fuzz
from tests.robustness.kills import KILLED, sigkills
from tests.robustness.rot import FLIP, TRUNCATION, ZEROS, Rot
from tests.robustness.scenarios import SCENARIOS, Scenario
from tests.robustness.sweeps import Sweep, Tally, crash_rounds
from tests.robustness.syscalls import CALLS, obstacle, sweep
from tests.robustness.syscalls import KINDS as SYSTEM_CALLS

NUM_PROCESSES = 2
NUM_KILLS = 200
NUM_MUTATED = 10_000  # files of each kind
SYSCALL_STRIDE = 5  # a run from start to end for each takes a third of a second
BOUND = 140  # outcomes of one power loss
S3_STRIDE = 4  # a start, a fault and a new start on a server take more than a second
S3_SCENARIOS = ("two saves, keep 1", "repair")
ENOUGH = {
    "power loss": 20_000,
    FLIP: 10_000,
    KILLED: NUM_KILLS,
    **dict.fromkeys(FUZZED, NUM_MUTATED),
}  # of the kinds named like this

EVERY_KIND = [
    *(f"{fault} at {verb}" for fault, verbs in AT.items() for verb in sorted(verbs)),
    *(
        f"{fault} at request {verb}"
        for fault, verbs in AT_REQUEST.items()
        for verb in sorted(verbs)
    ),
    *(f"power loss, name {fate}" for fate in ("kept", "dropped")),
    *(f"power loss, bytes {fate}" for fate in ("kept", "dropped", "torn", "zeroed")),
    *(f"{kind} in a {f}" for kind in (FLIP, TRUNCATION, ZEROS) for f in ("payload", "manifest")),
    *(f"{kind} in a pointer" for kind in (FLIP, TRUNCATION, ZEROS)),
    f"{FLIP} in a payload without manifest",
    "crash and repair, again and again",
    KILLED,
    *FUZZED,
    *(() if obstacle() else SYSTEM_CALLS),
]

Job = Callable[[Tally], None]


def jobs() -> Iterable[Job]:
    """The longest first, so that the processes end together."""
    yield partial(_kills)
    yield _requests_to_s3
    if not obstacle():
        for call in CALLS:
            yield partial(_system_calls, call)
    for kind in FUZZED:
        yield partial(_mutated_files, kind)
    for scenario in sorted(SCENARIOS, key=lambda scenario: -len(scenario.name)):
        yield partial(_operation_faults, scenario)
        yield partial(_power_losses, scenario)
        yield partial(_requests, scenario)
    for seed in range(10):
        yield partial(_rounds, seed)
        yield partial(_rot, seed)


def _kills(tally: Tally) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sigkills(tally, NUM_KILLS, Path(folder) / "run", random.Random(0))


def _system_calls(call: str, tally: Tally) -> None:
    sweep(tally, [call], stride=SYSCALL_STRIDE)


def _operation_faults(scenario: Scenario, tally: Tally) -> None:
    Sweep(scenario).operation_faults(tally)


def _requests(scenario: Scenario, tally: Tally) -> None:
    Sweep(scenario, place=Bucket).operation_faults(tally)


def _requests_to_s3(tally: Tally) -> None:
    with s3_server():
        for scenario in SCENARIOS:
            if scenario.name in S3_SCENARIOS:
                sweep = Sweep(scenario, place=S3Bucket)
                sweep.operation_faults(tally, stride=S3_STRIDE)


def _power_losses(scenario: Scenario, tally: Tally) -> None:
    Sweep(scenario).power_losses(tally, BOUND, random.Random(scenario.name))


def _mutated_files(kind: str, tally: Tally) -> None:
    fuzz(tally, kind, NUM_MUTATED, seed=0)


def _rounds(seed: int, tally: Tally) -> None:
    crash_rounds(tally, 100, random.Random(seed), keep_last=1 + 2 * (seed % 2), num_cuts=20)


def _rot(seed: int, tally: Tally) -> None:
    rng = random.Random(seed)
    rot = Rot()
    rot.of_one_file(tally, 900, rng)
    rot.of_one_file(tally, 100, rng, [TRUNCATION, ZEROS])
    rot.of_a_payload_alone(tally, 200, rng)


def _done(number: int) -> Tally:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of files moved to quarantine, many times over
    tally = Tally()
    list(jobs())[number](tally)
    return tally


def main() -> int:
    """The exit code."""
    if why := obstacle():
        print(f"no system call fails here: {why}", file=sys.stderr)
    total = Tally()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(NUM_PROCESSES, context) as pool:
        for tally in pool.map(_done, range(len(list(jobs())))):
            total.add(tally)
    for fault in sorted({*EVERY_KIND, *total.fired}):
        fired, violated = total.fired[fault], total.violated[fault]
        print(json.dumps({"fault": fault, "fired": fired, "violated": violated}))
    failures = [f"{fault}: never happened" for fault in EVERY_KIND if not total.fired[fault]]
    for name, enough in ENOUGH.items():
        found = total.fired[name] or sum(
            n for fault, n in total.fired.items() if fault.startswith(name)
        )
        if found < enough:
            failures.append(f"{name}: happened {found} times, expected at least {enough}")
    for fault, examples in total.examples.items():
        failures += [f"{fault}: {example}" for example in examples]
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0
