"""The RL commands: grammar, algorithms, scripts, denial cache, wait queue. No I/O."""
