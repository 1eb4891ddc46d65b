"""`python -m tests.powerloss` is `make powerloss`."""

import sys

from tests.powerloss.campaign import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
