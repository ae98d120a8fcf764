"""The errors of a benchmark: one sentence for the user, never a traceback."""


class BenchError(Exception):
    """The benchmark can't continue; the message is one line with the reason."""


class UsageError(BenchError):
    """The command line requests something impossible; the message names the option."""
