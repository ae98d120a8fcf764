"""How a benchmark fails: with a sentence for a person, never a traceback."""


class BenchError(Exception):
    """The benchmark can't go on; the message is one line and says why."""


class UsageError(BenchError):
    """What the command line asks for can't be done; the message names the option."""
