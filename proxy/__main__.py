"""python -m proxy: the same as the command rlproxy."""

import sys

from .cli import main

sys.exit(main())
