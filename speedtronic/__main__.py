"""`python -m speedtronic` is the `speedtronic` command."""

import sys

from speedtronic.cli import main

sys.exit(main())
