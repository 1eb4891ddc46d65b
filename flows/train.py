"""The flow that trains, for `prefect deploy` and `from flows.train import train`."""

from speedtronic.flows.train import train

__all__ = ["train"]
