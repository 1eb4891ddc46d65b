"""Crash, resume, and prove the same bits: `python flows/resume_demo.py [--seed N]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for a script its own folder is

from speedtronic.flows.demo import main

if __name__ == "__main__":
    sys.exit(main())
