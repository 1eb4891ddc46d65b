"""Checks with the server which flow run trained a directory, whatever the directory says."""

from contextlib import suppress
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from speedtronic.errors import SpeedtronicError
from speedtronic.flows.restarts import trained_by
from speedtronic.flows.train import configure, train
from speedtronic.storage.urls import local_path


def is_trained_here(run_dir: str) -> bool:
    """Say whether a deployed training run of this server wrote `run_dir`.

    The directory names the flow run; the server has to know it, as one that trains into this very
    directory. Whoever puts another directory beside it cannot make that up.
    """
    with suppress(ValueError), get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(trained_by(run_dir) or ""))
            name = client.read_flow(run.flow_id).name
        except ObjectNotFound:
            return False
        given = run.parameters
        with suppress(SpeedtronicError, OSError, TypeError, LookupError):
            rest = (given.get(key) for key in ("output_dir", "max_steps", "overrides"))
            settings, _ = configure(given["config"], *rest)
            there = local_path(settings.run.output_dir).resolve() == local_path(run_dir).resolve()
            return there and name == train.name and run.deployment_id is not None
    return False
