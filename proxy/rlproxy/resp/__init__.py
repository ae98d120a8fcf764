"""The Redis protocol: requests and replies as bytes, and the table of Redis' commands. No I/O."""
