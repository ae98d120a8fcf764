"""Sockets without Redis: listeners, TLS, the limit of open files."""
