"""Which unit tests need the interpreted modules."""

from __future__ import annotations

from rlproxy.version import compiled

# Their doubles inherit from compiled classes, or stand for them. Compiled code refuses both.
# scripts/test runs them in its interpreted stage.
_INTERPRETED = [
    "downstream/test_clients.py",
    "downstream/test_private_connection.py",
    "session/test_client_requests.py",
    "session/test_fail_open.py",
    "session/test_held_hit.py",
    "session/test_lane_calls.py",
    "session/test_private_stream.py",
    "session/test_router.py",
    "session/test_sharing.py",
    "session/test_wait_cover.py",
    "session/test_waits.py",
    "upstream/cluster/test_links.py",
    "upstream/cluster/test_lanes.py",
    "upstream/cluster/test_command_lanes.py",
]
collect_ignore = _INTERPRETED if compiled() else []
