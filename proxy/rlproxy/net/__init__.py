"""Sockets without Redis: listeners, TLS, peer addresses, the limit of open files."""
