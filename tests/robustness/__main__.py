"""`python -m tests.robustness` is `make robustness`."""

import sys

from tests.robustness.campaign import main

if __name__ == "__main__":
    sys.exit(main())
