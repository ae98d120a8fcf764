"""What one client may do to the latency of others: how much work and how many hits at a time."""
