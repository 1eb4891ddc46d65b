"""A sample of the long version (`make robustness`): the same code, with fewer of each."""

import random
from pathlib import Path

import pytest

from speedtronic.checkpoint import CheckpointStore
from tests.buckets import s3_server
from tests.robustness.bucket import ANSWER_LOST, SENT_TWICE, Bucket, S3Bucket
from tests.robustness.campaign import EVERY_KIND, S3_SCENARIOS
from tests.robustness.failpoints import AT
from tests.robustness.kills import KILLED, sigkills
from tests.robustness.rot import FLIP, TRUNCATION, ZEROS, Rot
from tests.robustness.scenarios import SCENARIOS, Scenario
from tests.robustness.stage import state_at
from tests.robustness.sweeps import Sweep, Tally, crash_rounds

STRIDE = 11
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def assert_holds(tally: Tally) -> None:
    assert tally.fired
    assert not tally.violated, tally.examples


@EACH
def test_no_operation_that_goes_wrong_breaks_a_promise(scenario: Scenario) -> None:
    tally = Tally()
    first = SCENARIOS.index(scenario) % STRIDE
    Sweep(scenario).operation_faults(tally, first=first, stride=STRIDE)
    assert_holds(tally)


@EACH
def test_no_request_that_goes_wrong_breaks_a_promise(scenario: Scenario) -> None:
    tally = Tally()
    first = SCENARIOS.index(scenario) % STRIDE
    Sweep(scenario, place=Bucket).operation_faults(tally, first=first, stride=STRIDE)
    assert_holds(tally)


def test_neither_does_an_answer_of_s3_that_is_lost() -> None:
    [scenario] = [s for s in SCENARIOS if s.name == S3_SCENARIOS[0]]
    tally = Tally()
    with s3_server():
        sweep = Sweep(scenario, place=S3Bucket)
        sweep.operation_faults(tally, [ANSWER_LOST, SENT_TWICE], first=1, stride=2)
    assert_holds(tally)


@pytest.mark.parametrize("number", range(3))
def test_a_request_that_s3_gets_twice_is_no_failure(number: int) -> None:
    with s3_server():
        bucket = S3Bucket()
        bucket.arm(number, SENT_TWICE)
        CheckpointStore(bucket, keep_last=1).save(state_at(2))
        assert bucket.fired == "request pipe_file"
        checkpoint = CheckpointStore(bucket.killed(), keep_last=1).select()
    assert checkpoint is not None
    assert checkpoint.manifest.step == 2


@EACH
def test_no_power_loss_breaks_a_promise(scenario: Scenario) -> None:
    tally = Tally()
    Sweep(scenario).power_losses(tally, 3, random.Random(scenario.name))
    assert_holds(tally)


@pytest.mark.parametrize("keep_last", [1, 3])
def test_a_hundred_crashes_and_repairs_leave_no_junk(keep_last: int) -> None:
    tally = Tally()
    crash_rounds(tally, 100, random.Random(keep_last), keep_last=keep_last, num_cuts=2)
    assert_holds(tally)


def test_no_rotten_file_is_ever_taken_for_good() -> None:
    tally = Tally()
    Rot().of_one_file(tally, 100, random.Random(0), [FLIP, TRUNCATION, ZEROS])
    assert_holds(tally)


def test_a_rotten_payload_that_nothing_vouches_for_is_refused_in_words() -> None:
    tally = Tally()
    Rot().of_a_payload_alone(tally, 200, random.Random(0))
    assert_holds(tally)


def test_sigkills_of_a_saving_process_lose_nothing_acknowledged(tmp_path: Path) -> None:
    tally = Tally()
    sigkills(tally, 50, tmp_path / "run", random.Random(0))
    assert_holds(tally)


def test_faults_come_at_every_operation_until_none_is_left() -> None:
    """The first save alone: every fault at every one of its operations, and no further."""
    [scenario] = [s for s in SCENARIOS if s.name == "first save, keep 1"]
    tally = Tally()
    Sweep(scenario).operation_faults(tally, ["killed before"])
    counts = {fault.removeprefix("killed before at "): n for fault, n in tally.fired.items()}
    # Payload, manifest, pointer: three files, each created, synced and renamed.
    assert (counts["create"], counts["sync"], counts["rename"]) == (3, 3, 3)
    assert set(counts) <= AT["killed before"]


def test_the_list_of_kinds_has_each_once() -> None:
    assert len(EVERY_KIND) == len(set(EVERY_KIND))
    assert KILLED in EVERY_KIND
