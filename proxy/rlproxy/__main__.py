"""`python -m rlproxy`: the same as the command `rlproxy`."""

import sys

from rlproxy.cli import main

sys.exit(main())
