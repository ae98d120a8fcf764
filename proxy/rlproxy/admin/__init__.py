"""The HTTP side of a running proxy: live page, metrics and probes."""
