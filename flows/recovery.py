"""The flow that verifies and drills runs, for `prefect deploy`."""

from speedtronic.flows.recovery import recovery

__all__ = ["recovery"]
