"""Prefect flows that train, recover and show runs. Nothing outside this package imports prefect."""
