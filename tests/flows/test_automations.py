"""What brings back a flow run whose process died is on the server once, however often made."""

import subprocess
import sys

from flows.automations import automations, make_automations
from tests.flows.serving import ROOT, Serving, client


def names() -> list[str]:
    with client() as api:
        return sorted(a.name for a in api.read_automations() if a.name.startswith("speedtronic"))


def test_making_them_again_changes_nothing(served: Serving) -> None:
    wanted = sorted(automation.name for automation in automations())
    assert names() == wanted, "make serve made them"
    first = automations()[0].name
    with client() as api:
        (there,) = api.read_automations_by_name(first)
        api.pause_automation(there.id)
    command = [sys.executable, "-m", "flows.automations"]
    done = subprocess.run(command, env=served.client_env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.partition(": ")[2] for line in done.stdout.splitlines()] == [
        automation.name for automation in automations()
    ]
    assert names() == wanted
    with client() as api:
        (again,) = api.read_automations_by_name(first)
        assert (again.id, again.enabled) == (there.id, False), "switched off by somebody"
        api.resume_automation(there.id)


def test_one_that_is_out_of_date_is_brought_up_to_date() -> None:
    wanted = automations()[1]
    with client() as api:
        (there,) = api.read_automations_by_name(wanted.name)
        old = there.model_copy(update={"description": "of an earlier version"})
        api.update_automation(
            there.id,
            type(wanted).model_validate(
                old.model_dump(include=set(type(wanted).model_fields) - {"owner_resource"})
            ),
        )
        make_automations()
        (again,) = api.read_automations_by_name(wanted.name)
    assert (again.id, again.description) == (there.id, wanted.description)
    assert again.trigger == wanted.trigger


def test_without_a_server_the_command_says_what_is_missing(served: Serving) -> None:
    env = {key: value for key, value in served.env.items() if key != "PREFECT_API_URL"}
    command = [sys.executable, "-m", "flows.automations"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "PREFECT_API_URL" in done.stderr
