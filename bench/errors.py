"""The errors of a benchmark: one sentence for the user, never a traceback."""

import sys
from collections.abc import Callable


class BenchError(Exception):
    """The benchmark can't continue; the message is one line with the reason."""


class UsageError(BenchError):
    """The command line requests something impossible; the message names the option."""


def reported(call: Callable[[], None]) -> int:
    """Call a command; an error of it is one line on stderr.

    Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    try:
        call()
    except UsageError as error:
        code, why = 2, str(error)
    except (BenchError, OSError) as error:
        code, why = 1, str(error)
    except KeyboardInterrupt:
        code, why = 130, "interrupted, nothing was written"
    else:
        return 0
    print(f"bench: {why}", file=sys.stderr)
    return code
