"""Prefect's server, the deployments and a worker, until Ctrl-C: `make serve`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for a script its own folder is

from speedtronic.flows.serve import main

if __name__ == "__main__":
    sys.exit(main())
