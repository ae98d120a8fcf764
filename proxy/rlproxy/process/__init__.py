"""Processes: one worker, the supervisor of several, and how clients are shared between them."""
