"""Prefect's page in a browser: the run, its chunks, and what they left, are found where one looks.

`make test-page`; the pictures are in build/page.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from speedtronic.flows.keys import slug
from speedtronic.storage.lock import read_lock_record
from tests.flows.serving import (
    ROOT,
    Serving,
    artifacts,
    client,
    deploy,
    flow_run,
    log_of,
    state_of,
    until,
)
from tests.page.browser import Browser
from tests.recipes import exact_recipe
from tests.waiting import last_step, wait_until

FIELDS = {
    "recovery/verification": ["run_dirs", "repair", "drill", "mend what can be mended"],
    "speedtronic/train": ["config", "output_dir", "max_steps", "overrides", "absolute target step"],
}
PICTURES = ROOT / "build/page"
WAIT_S = 240.0


@dataclass(frozen=True)
class Shown:
    """A run that went through a kill, and the recovery flow that looked at it."""

    serving: Serving
    run: str
    run_name: str
    recovery: str
    slug: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    serving = Serving(tmp_path_factory.mktemp("prefect"))
    directory = tmp_path_factory.mktemp("runs") / "poem"
    changes = {
        "run.name": "poem",
        "run.max_steps": 400,
        "checkpoint.every_steps": 20,
        "chunk.steps": 100,
        "validation.every_steps": 20,
        "validation.text_path": "{stdlib}/types.py",
        "validation.max_batches": 4,
    }
    config = exact_recipe(directory, **changes)
    try:
        serving.start()
        with serving.as_client():
            run_id = deploy(config)
            assert wait_until(lambda: last_step(directory / "metrics.jsonl") >= 150, WAIT_S)
            os.kill(int(str(read_lock_record(config.checkpoint_dir)["pid"])), signal.SIGKILL)
            assert until(lambda: state_of(run_id) == "Completed", WAIT_S), log_of(run_id)
            with client() as api:
                deployment = api.read_deployment_by_name("recovery/verification").id
                parameters = {"run_dirs": [str(directory)]}
                recovery = api.create_flow_run_from_deployment(deployment, parameters=parameters).id
            assert until(lambda: state_of(recovery) == "Completed", WAIT_S), log_of(recovery)
            yield Shown(
                serving,
                str(run_id),
                flow_run(run_id).name,
                str(recovery),
                slug(str(directory)),
            )
    finally:
        if serving.process and serving.process.poll() is None:
            serving.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, shown: Shown) -> Iterator[Browser]:
    """One that has been told the secret, once."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with Browser(tmp_path_factory.mktemp("chromium"), height=1200) as browser:
        browser.open(f"{shown.serving.page}/runs")
        assert browser.shows("Login"), browser.text()
        browser.picture(PICTURES / "login.png")
        assert shown.run_name not in browser.text()
        browser.type(shown.serving.secret)
        assert browser.shows(shown.run_name), browser.text()
        yield browser


def test_the_run_is_in_the_list(shown: Shown, browser: Browser) -> None:
    browser.open(f"{shown.serving.page}/runs")
    assert browser.shows(shown.run_name, "Completed"), browser.text()
    browser.picture(PICTURES / "runs.png")


def test_its_chunks_are_on_its_page(shown: Shown, browser: Browser) -> None:
    browser.open(f"{shown.serving.page}/runs/flow-run/{shown.run}")
    assert browser.shows("starting at step 0"), "the log of the process that trains"
    browser.click("Task Runs")
    chunks = ("restore", "steps 0-100", "steps 100-200", "steps 200-300", "steps 300-400")
    assert browser.shows(*chunks), browser.text()
    browser.picture(PICTURES / "run.png")


def test_so_are_its_artifacts(shown: Shown, browser: Browser) -> None:
    browser.open(f"{shown.serving.page}/runs/flow-run/{shown.run}")
    browser.click("Artifacts")
    assert browser.shows(*(f"{kind}-{shown.slug}" for kind in ("progress", "chunks", "loss")))
    browser.picture(PICTURES / "artifacts-of-run.png")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("progress", ["poem: step 400 of 400"]),
        ("chunks", ["steps", "signals", "100-200", "SIGKILL"]),
        ("loss", ["poem: the loss up to step 400"]),
        ("recovery", ["healthy; a resume would start from step 400", "pointer", "payload"]),
    ],
)
def test_each_artifact_can_be_looked_at(
    kind: str, said: list[str], shown: Shown, browser: Browser
) -> None:
    with shown.serving.as_client():
        newest = artifacts(f"{kind}-{shown.slug}")[0]
    browser.open(f"{shown.serving.page}/artifacts/artifact/{newest.id}")
    assert browser.shows(*said), browser.text()
    browser.picture(PICTURES / f"{kind}.png")


def test_the_form_of_a_deployment_says_what_each_field_is(shown: Shown, browser: Browser) -> None:
    for deployment, fields in FIELDS.items():
        with shown.serving.as_client(), client() as api:
            known = api.read_deployment_by_name(deployment).id
        browser.open(f"{shown.serving.page}/deployments/deployment/{known}/run")
        assert browser.shows(*fields), browser.text()
        browser.picture(PICTURES / f"form-{deployment.replace('/', '-')}.png")


def test_a_flow_run_is_started_by_its_button(shown: Shown, browser: Browser) -> None:
    """Which changes something, so that the page needs a token besides."""

    def num_started() -> int:
        with shown.serving.as_client(), client() as api:
            runs = api.read_flow_runs()
        return len([run for run in runs if run.deployment_id == known and not run.auto_scheduled])

    with shown.serving.as_client(), client() as api:
        known = api.read_deployment_by_name("recovery/verification").id
    before = num_started()
    browser.open(f"{shown.serving.page}/deployments/deployment/{known}/run")
    assert browser.shows("Submit"), browser.text()

    def started() -> bool:  # SQLite may be busy, which the page says, and does not try again
        if "Submit" in browser.text():
            browser.click("Submit")
        return num_started() > before

    assert until(started, WAIT_S), browser.text()


def test_so_is_the_page_under_the_other_name_of_this_machine(shown: Shown, tmp_path: Path) -> None:
    with Browser(tmp_path / "chromium") as stranger:
        stranger.open(f"{shown.serving.page.replace('127.0.0.1', 'localhost')}/runs")
        assert stranger.shows("Login"), stranger.text()
        stranger.type(shown.serving.secret)
        assert stranger.shows(shown.run_name, "Completed"), stranger.text()


def test_a_page_of_another_site_can_neither_look_nor_start(
    shown: Shown, browser: Browser, tmp_path: Path
) -> None:
    """In the browser that knows the secret."""
    with shown.serving.as_client(), client() as api:
        known = api.read_deployment_by_name("speedtronic/train").id
    (tmp_path / "evil.html").write_text(
        EVIL.format(api=shown.serving.api, id=known), encoding="utf-8"
    )
    browser.open((tmp_path / "evil.html").as_uri())
    assert browser.shows("done"), browser.text()
    assert "got" not in browser.text(), browser.text()
    with shown.serving.as_client(), client() as api:
        runs = api.read_flow_runs()
    assert "forged" not in [run.name for run in runs]


EVIL = """<body></body><script>
const say = text => document.body.append(text + "\\n")
const ask = (path, body, type) => fetch("{api}" + path, {{method: "POST", body, credentials:
  "include", headers: {{"Content-Type": type}}}}).then(a => a.ok && say("got " + path), () => {{}})
const run = JSON.stringify({{name: "forged", parameters: {{config: "configs/smoke.yaml"}}}})
const all = ["application/json", "text/plain"].flatMap(type => [
  ask("/deployments/filter", "{{}}", type), ask("/deployments/{id}/create_flow_run", run, type)])
Promise.all(all).then(() => say("done"))
</script>"""


def test_pictures_are_kept_out_of_the_repository() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", str(PICTURES)], cwd=ROOT)
    assert ignored.returncode == 0 or not (Path(ROOT) / ".git").exists()
