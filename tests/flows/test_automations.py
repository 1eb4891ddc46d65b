"""What brings back a flow run whose process died is on the server once, however often made."""

import subprocess
import sys

import pytest

from speedtronic.flows.automations import automations, make_automations
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
    command = [sys.executable, "-m", "speedtronic.flows.automations"]
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


@pytest.mark.parametrize("module", ["speedtronic.flows.automations", "speedtronic.flows.revival"])
@pytest.mark.parametrize(
    ("api", "secret", "code", "said"),
    [
        (None, "", 2, "PREFECT_API_URL"),
        ("http://127.0.0.1:1/api", "", 1, "127.0.0.1:1/api: "),
        ("ours", "wrong", 1, "401"),
    ],
    ids=["no server", "no answer", "not the secret"],
)
def test_the_commands_say_in_a_line_what_is_wrong(
    module: str, api: str | None, secret: str, code: int, said: str, served: Serving
) -> None:
    env = {k: v for k, v in served.env.items() if k != "PREFECT_API_URL"}
    if api:
        env |= {"PREFECT_API_URL": served.api if api == "ours" else api}
        env |= {"PREFECT_API_AUTH_STRING": secret, "PREFECT_CLIENT_MAX_RETRIES": "0"}
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
