"""The benchmark: `python -m bench` runs Redis directly, the proxy and its peers side by side."""
