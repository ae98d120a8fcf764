"""What the proxy reports of itself: counters, metrics, hot keys, log lines."""
