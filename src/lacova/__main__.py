"""`python -m lacova` is the command `lacova`."""

import sys

from lacova.cli import main

sys.exit(main())
