import io
import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.data import BatchLoader, build_loader
from speedtronic.data.stream import StreamLoader
from speedtronic.errors import ConfigError, DataError, RestoreError
from tests import own_parts
from tests.waiting import Processes

NUM_SAMPLES = 80  # 3.6 epochs of 22

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "without state": ("stream", {}),
    "that counts its passes": ("counting_stream", {}),
    "by set_epoch": ("epoch_stream", {}),
    "with state": ("stateful_stream", {}),
    "hf": ("hf_iterable", {"num_items": 21}),  # batches of 4 end at every place of it
    "hf map": ("hf_iterable", {"num_items": 21, "how": "map"}),
    "hf batched map": ("hf_iterable", {"num_items": 21, "how": "batched"}),
    "hf generator": ("hf_iterable", {"num_items": 21, "how": "generator"}),
    "hf shuffled shards": ("hf_iterable", {"num_items": 21, "how": "shards"}),
    "torch loader": ("torch_loader", {}),
    "torch loader, dropping": ("torch_loader", {"drop_last": True}),
    "torch loader, stateful stream": ("stateful_loader", {"of": "stateful", "num_workers": 0}),
    "torchdata map, no worker": ("stateful_loader", {"num_workers": 0}),
    "torchdata hf, no worker": ("stateful_loader", {"of": "hf", "num_workers": 0}),
}
WITH_WORKERS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch loader": ("torch_loader", {"num_workers": 2}),
    "torchdata map": ("stateful_loader", {}),
    "torchdata stream": ("stateful_loader", {"of": "stream"}),
    "torchdata hf": ("stateful_loader", {"of": "hf"}),
    "torchdata persistent": ("stateful_loader", {"persistent_workers": True}),
    "torchdata snapshots": ("stateful_loader", {"snapshot_every_n_steps": 3}),
}


def make_config(name: str, args: dict[str, Any] | None = None, **data: Any) -> SpeedtronicConfig:
    return SpeedtronicConfig.from_dict(
        {
            "data": {
                "dataset": f"tests.own_parts:{name}",
                "dataset_args": args or {},
                "seed": 5,
                "micro_batch_size": 4,
                "target_batch_size": 4,
                **data,
            }
        }
    )


Make = Callable[..., BatchLoader]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


@pytest.fixture
def make_loader() -> Iterator[Make]:
    made = []

    def make(name: str, args: dict[str, Any] | None = None, **data: Any) -> BatchLoader:
        made.append(build_loader(make_config(name, args, **data), pin_memory=False))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
    assert multiprocessing.active_children() == []


def take(loader: BatchLoader, num_samples: int) -> list[list[int]]:
    taken: list[list[int]] = []
    while len(taken) < num_samples:
        taken += loader.next_batch()["input_ids"].tolist()
    assert len(taken) == num_samples
    return taken


def through_disk(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def position(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in ("source", "source_at")}


def assert_resumes(make: Callable[[], BatchLoader], stops: range) -> None:
    whole = make()
    expected: list[list[int]] = []
    states = {0: whole.state_dict()}
    for done in range(4, NUM_SAMPLES + 1, 4):
        expected += take(whole, 4)
        states[done] = through_disk(whole.state_dict())
    for stop in stops:
        resumed = make()
        resumed.load_state_dict(states[stop])
        assert resumed.position == stop
        assert position(resumed.state_dict()) == position(states[stop])
        assert take(resumed, NUM_SAMPLES - stop) == expected[stop:], stop
        assert position(resumed.state_dict()) == position(states[NUM_SAMPLES]), stop
        resumed.close()
    assert_resumes_in_a_row(make, expected, [*stops[1:], NUM_SAMPLES])


def assert_resumes_in_a_row(
    make: Callable[[], BatchLoader], expected: list[list[int]], stops: list[int]
) -> None:
    state, taken = None, []
    for stop in stops:
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        taken += take(loader, stop - len(taken))
        state = through_disk(loader.state_dict())
        loader.close()
    assert taken == expected


@pytest.mark.parametrize("stream", STREAMS)
def test_resumes_at_every_batch(make_loader: Make, stream: str) -> None:
    name, args = STREAMS[stream]
    assert_resumes(lambda: make_loader(name, args), range(0, NUM_SAMPLES, 4))


@pytest.mark.parametrize("stream", WITH_WORKERS)
def test_resumes_with_workers_of_its_own(make_loader: Make, stream: str) -> None:
    name, args = WITH_WORKERS[stream]
    assert_resumes(lambda: make_loader(name, args), range(4, NUM_SAMPLES, 24))


@pytest.mark.parametrize("stream", STREAMS)
def test_epochs_follow_one_another(make_loader: Make, stream: str) -> None:
    name, args = STREAMS[stream]
    loader = make_loader(name, args)
    take(loader, 40)
    num_items = args.get("num_items", 22)
    epoch_samples = num_items // 4 * 4 if "loader" in name else num_items
    state = loader.state_dict()
    assert (state["samples"], state["epoch"], state["index"]) == (40, 1, 40 - epoch_samples)


def test_each_item_is_drawn_anew_in_each_epoch(make_loader: Make) -> None:
    taken = take(make_loader("stream", {"num_items": 20}), 60)
    assert taken[:20] != taken[20:40] != taken[40:]
    other = make_loader("stream", {"num_items": 20}, seed=6)
    assert take(other, 60) != taken


@pytest.mark.parametrize(
    ("name", "stop", "skipped"),
    [
        ("stream", 48, 48),
        ("epoch_stream", 48, 4),
        ("torch_loader", 48, 48),
        ("stateful_stream", 48, None),
        ("stateful_loader", 48, None),
    ],
)
def test_skipping_is_reported(
    make_loader: Make,
    caplog: pytest.LogCaptureFixture,
    name: str,
    stop: int,
    skipped: int | None,
) -> None:
    first, second = make_loader(name), make_loader(name)
    take(first, stop)
    with caplog.at_level(logging.WARNING, "speedtronic"):
        second.load_state_dict(first.state_dict())
        caplog.clear()
        second.next_batch()
    if skipped is None:
        assert not [record for record in caplog.records if "skipping" in record.message]
    else:
        assert f"skipping {skipped} samples of a " in caplog.text
        assert "to go on at sample 48" in caplog.text


@pytest.mark.parametrize("stream", [*STREAMS, *WITH_WORKERS])
def test_global_random_streams_are_left_alone(make_loader: Make, stream: str) -> None:
    name, args = {**STREAMS, **WITH_WORKERS}[stream]
    before = (torch.get_rng_state(), pickle.dumps(np.random.get_state()), random.getstate())
    loader = make_loader(name, args)
    take(loader, 28)
    other = make_loader(name, args)
    other.load_state_dict(loader.state_dict())
    take(other, 4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert pickle.dumps(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


def test_nothing_depends_on_the_global_random_streams(make_loader: Make) -> None:
    taken = []
    for number in range(2):
        torch.manual_seed(number), np.random.seed(number), random.seed(number)
        taken.append(take(make_loader("stateful_loader"), 60))
    assert taken[0] == taken[1]


def test_jumps_back_and_forth(make_loader: Make) -> None:
    for name in ("stream", "stateful_stream", "torch_loader"):
        loader = make_loader(name)
        start = loader.state_dict()
        first = take(loader, 24)
        later = loader.state_dict()
        beyond = take(loader, 8)
        loader.load_state_dict(start)
        assert take(loader, 24) == first
        loader.close()
        assert take(loader, 8) == beyond
        loader.load_state_dict(later)
        assert take(loader, 8) == beyond


def test_loading_where_it_stands_keeps_the_workers(make_loader: Make) -> None:
    loader = make_loader("stateful_loader")
    take(loader, 8)
    workers = multiprocessing.active_children()
    loader.load_state_dict(loader.state_dict())
    take(loader, 4)
    assert multiprocessing.active_children() == workers


class Failing(own_parts.Stream):
    """Fails once, in the middle of a batch."""

    fails = True

    def __iter__(self) -> Iterator[own_parts.Item]:
        for index, item in enumerate(super().__iter__()):
            if index == 10 and Failing.fails:
                Failing.fails = False
                raise OSError("the network is away")
            yield item


def test_a_failure_loses_nothing(make_loader: Make) -> None:
    loader = StreamLoader(Failing, micro_batch_size=4, seed=5)
    Failing.fails = True
    taken = take(loader, 8)
    with pytest.raises(OSError, match="network"):
        loader.next_batch()
    assert loader.position == 8
    assert loader.state_dict()["index"] == 8
    assert taken + take(loader, 32) == take(make_loader("stream"), 40)


def test_a_generator_lasts_one_epoch() -> None:
    loader = StreamLoader(lambda: iter(own_parts.Stream(10)), micro_batch_size=4, seed=0)
    take(loader, 8)
    with pytest.raises(DataError, match="epoch 1 of a generator ended before the first sample"):
        loader.next_batch()
    assert loader.position == 8


@pytest.mark.parametrize("name", ["stream", "stateful_stream", "stateful_loader"])
def test_no_items_are_refused(make_loader: Make, name: str) -> None:
    args = {"num_workers": 0, "of": "stream"} if name == "stateful_loader" else {}
    with pytest.raises(DataError, match=r"epoch 0 of a .* ended before the first sample"):
        make_loader(name, {"num_items": 0, **args}).next_batch()


@pytest.mark.parametrize("name", ["stream", "epoch_stream"])
def test_a_stream_that_shrank_is_noticed_when_skipping(make_loader: Make, name: str) -> None:
    first, second = make_loader(name), make_loader(name, {"num_items": 12})
    take(first, 16)
    second.load_state_dict(first.state_dict())
    with pytest.raises(RestoreError, match=r"Stream is not the one .*epoch=0.*found.*epoch=1"):
        second.next_batch()
    with pytest.raises(RestoreError, match="Stream is not the one"):
        second.next_batch()
    second.load_state_dict(first.state_dict(), any_order=True)
    take(second, 8)
    assert second.position == 24


def test_a_state_that_is_refused_is_an_error(make_loader: Make) -> None:
    first, second = make_loader("stateful_stream"), make_loader("stateful_stream")
    take(first, 4)
    state = first.state_dict()
    state["source"]["tag"] = "another"
    second.load_state_dict(state)
    with pytest.raises(RestoreError, match=r"load_state_dict raised AssertionError"):
        second.next_batch()


def test_a_state_that_cannot_be_kept_is_refused_by_name() -> None:
    class Odd(own_parts.StatefulStream):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": {1, 2}}

    loader = StreamLoader(Odd, micro_batch_size=4, seed=0)
    loader.next_batch()
    with pytest.raises(DataError, match=r"state_dict\(\)\['seen'\] is a builtins\.set"):
        loader.state_dict()


def test_another_kind_or_seed_is_refused(make_loader: Make) -> None:
    stream, samples = make_loader("stream"), make_loader("augmented")
    take(stream, 8), take(samples, 8)
    with pytest.raises(RestoreError, match="saved seed 5, now a stream with seed 6"):
        make_loader("stream", seed=6).load_state_dict(stream.state_dict())
    with pytest.raises(RestoreError, match="saved data in an order of ours, now a stream"):
        make_loader("stream").load_state_dict(samples.state_dict())
    with pytest.raises(RestoreError, match="num_samples: saved None, now 22"):
        make_loader("augmented").load_state_dict(stream.state_dict())


def test_data_changed_on_purpose_goes_on(make_loader: Make) -> None:
    stream, samples = make_loader("stream"), make_loader("augmented")
    beginning = take(stream, 32)
    take(samples, 24)
    changed = make_loader("stream")
    changed.load_state_dict(samples.state_dict(), any_order=True)
    assert take(changed, 24) == beginning[:24]
    assert changed.position == 48
    again = make_loader("stream")
    again.load_state_dict(through_disk(changed.state_dict()))
    assert take(again, 8) == beginning[24:]
    samples.load_state_dict(stream.state_dict(), any_order=True)
    assert samples.position == 32
    reseeded = make_loader("stream", seed=6)
    reseeded.load_state_dict(stream.state_dict(), any_order=True)
    reseeded.next_batch()
    assert reseeded.position == 36


@pytest.mark.parametrize(
    ("name", "args", "data", "message"),
    [
        ("stream", {}, {"num_workers": 2}, r"num_workers is 2; .* Stream, .* StatefulDataLoader"),
        ("stream", {}, {"shuffle": True}, r"data\.shuffle is true; it must be false for a Stream"),
        ("hf_iterable", {}, {"shuffle": True}, r"must be false for a IterableDataset"),
        ("torch_loader", {}, {"num_workers": 2}, r"num_workers is 2; it must be 0 for a DataLoad"),
        ("torch_loader", {"batch_size": 2}, {}, r"micro_batch_size is 4; .* has batch_size 2"),
    ],
)
def test_what_a_stream_cannot_be_asked_for_is_refused(
    make_loader: Make, name: str, args: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_loader(name, args, **data)


def ready(*sizes: int) -> StreamLoader:
    """Batches of these sizes in each epoch, from a loader that does not tell its batch size."""
    batches = [{"input_ids": torch.full((size, 2), size)} for size in sizes]
    return StreamLoader(
        lambda: torch.utils.data.DataLoader(batches, batch_size=None),  # type: ignore[arg-type]
        micro_batch_size=4,
        seed=0,
    )


def test_short_batches_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    loader = ready(4, 3, 4, 2)
    with caplog.at_level(logging.WARNING, "speedtronic"):
        assert take(loader, 16) == [[4, 4]] * 16
    assert loader.state_dict()["epoch"] == 1
    assert [record.message for record in caplog.records] == [
        "data.dataset: left out a batch of 3 samples, shorter than data.micro_batch_size, 4; so "
        "will be all such batches (drop_last=True in the loader does the same)"
    ]


@pytest.mark.parametrize("sizes", [(5,), (4, 8), (3, 4), (3,)])
def test_batches_of_a_wrong_size_are_refused(sizes: tuple[int, ...]) -> None:
    loader = ready(*sizes)
    with pytest.raises(DataError, match=r"gave a batch of [358] samples, expected 4, which is"):
        take(loader, 16)
    assert loader.position == 4 * sizes.index(max(sizes)) * (sizes[0] == 4)


def test_fingerprint_is_of_the_type_alone(make_loader: Make) -> None:
    some = make_loader("stream").fingerprint()
    assert some == make_loader("stream", {"num_items": 3}).fingerprint()
    assert some.startswith("xxh3_128:")
    assert some != make_loader("stateful_stream").fingerprint()


def test_workers_of_its_own_leave_ctrl_c_to_the_trainer(make_loader: Make) -> None:
    expected = take(make_loader("stateful_loader"), 40)
    loader = make_loader("stateful_loader")
    taken = take(loader, 4)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid or 0, signal.SIGINT)
    assert taken + take(loader, 36) == expected


TRAINER = """
import multiprocessing, sys
import torch.utils.data._utils.worker
from tests.unit.data.test_stream import make_config
from speedtronic.data import build_loader
loader = build_loader(make_config("stateful_loader"), pin_memory=False)
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 3600  # torch's own watch on its parent
loader.next_batch()
print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
sys.stdin.read()
"""


def test_workers_of_its_own_end_with_a_killed_trainer() -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    try:
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        with Processes(pids) as workers:
            assert workers.num_running() == 2
            trainer.kill()
            trainer.wait()
            assert workers.end_within()
    finally:
        trainer.kill()
        trainer.communicate()


class Stop(Exception):
    pass


@pytest.mark.parametrize("name", ["stream", "torch_loader", "augmented"])
def test_tells_of_each_sample_and_of_what_it_skips(make_loader: Make, name: str) -> None:
    first, second = make_loader(name), make_loader(name)
    take(first, 48)
    second.load_state_dict(first.state_dict())
    told = []
    with pytest.MonkeyPatch.context() as patch:
        for module in ("stream", "user_data"):
            patch.setattr(
                f"speedtronic.data.{module}.report_progress", lambda *text: told.append(text)
            )
        second.next_batch()
    skipped = [text for text in told if text[0] == "skipping samples"]
    size = {"stream": 1, "torch_loader": 4}.get(name, 48)
    assert skipped == [("skipping samples", n, 48) for n in range(0, 48, size) if size < 48]
    if name != "torch_loader":  # whose batches come ready
        assert told[-1] == ("reading samples of a batch", 4, 4)
