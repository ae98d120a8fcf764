"""Connections to Redis: connector, control connection, lanes, Sentinel, the embedded server."""
