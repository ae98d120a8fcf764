"""admin_process: what the process that serves HTTP is given."""

from __future__ import annotations

import pickle

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Sentinels, Upstream
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.admin_process import AdminProcess

PIPE = 65536  # bytes that a pipe takes without a reader


@pytest.mark.parametrize("actions", [True, False])
def test_it_gets_the_login_for_actions_and_no_other_secret(actions: bool) -> None:
    sentinels = Sentinels((Address("s", 1),), "m", "bob", "theirs")
    config = Config(
        upstream=Upstream(None, "amy", "hunter2", sentinels=sentinels),
        admin=Address("127.0.0.1", 0),
        admin_actions=actions,
        deny_command=tuple(f"command{number}" for number in range(9999)),
        policies=tuple((f"name{number}", "5 60", False) for number in range(9999)),
        pem={"key.pem": b"-----BEGIN PRIVATE KEY-----"},
    )
    listening = [Address("127.0.0.1", 7000)]
    made = AdminProcess(config, SharedMemory(1), listening)
    made.stop()
    data = made._input
    assert (b"hunter2" in data) == actions
    assert b"theirs" not in data
    assert b"PRIVATE" not in data
    assert len(data) < PIPE
    *_, settings = pickle.loads(data)
    assert settings.listen == tuple(listening)
