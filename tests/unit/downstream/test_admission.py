"""Which clients are admitted."""

from __future__ import annotations

import dataclasses

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import UNIX_CLIENT, Address, Upstream
from rlproxy.downstream import admission
from rlproxy.downstream.admission import Admission
from rlproxy.resp.commands import UNRESTRICTED

HERE = Address("127.0.0.1", 1)
THERE = Address("10.0.0.1", 1)
CONFIG = Config((Address("0.0.0.0", 1),), Upstream(Address("redis", 6379)))


def made(needs_password: bool | None = True, **changes: object) -> Admission:
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
    found = Admission(config, "redis:6379", 1000)
    found.needs_password = needs_password
    return found


@pytest.mark.parametrize("peer", [UNIX_CLIENT, HERE])
@pytest.mark.parametrize("needs", [None, True, False])
def test_protected_mode_is_not_for_local_clients(peer: Address, needs: bool | None) -> None:
    assert made(needs).refusal(peer, 0, 0) is None


def test_protected_mode() -> None:
    assert made(True).refusal(THERE, 0, 0) is None
    assert made(False).refusal(THERE, 0, 0) is admission.PROTECTED
    unjudged = made(None).refusal(THERE, 0, 0)
    assert unjudged is not None
    assert unjudged.reply.startswith(b"-UPSTREAMDOWN rlproxy has not reached Redis at redis:6379 ")
    for needs in (None, True, False):
        assert made(needs, protected_mode=False).refusal(THERE, 0, 0) is None


def test_the_number_of_clients() -> None:
    found = made(max_clients=3)
    for peer in (UNIX_CLIENT, HERE, THERE):
        assert found.refusal(peer, 2, 2) is None
        assert found.refusal(peer, 3, 0) is admission.FULL
    assert admission.FULL.reply == b"-ERR max number of clients reached\r\n"


def test_the_number_of_an_address() -> None:
    found = made(max_clients_per_address=2)
    assert found.refusal(THERE, 100, 1) is None
    assert found.refusal(THERE, 100, 2) is admission.FULL_ADDRESS
    assert found.refusal(HERE, 100, 2) is admission.FULL_ADDRESS
    assert found.refusal(UNIX_CLIENT, 100, 2) is None  # a unix socket has none
    assert made().refusal(THERE, 100, 100) is None


def test_each_has_its_commands() -> None:
    found = made()
    assert found.table_of(HERE) is found.table_of(UNIX_CLIENT) is UNRESTRICTED
    assert found.table_of(THERE).rows[b"DEBUG"].ban is not None
    assert made(local_commands=True).table_of(THERE) is UNRESTRICTED
    for peer in (HERE, THERE):
        assert made(deny_command=("keys",)).table_of(peer).rows[b"KEYS"].ban is not None


def test_all_of_it_may_change() -> None:
    found = made(False)
    config = dataclasses.replace(
        CONFIG,
        protected_mode=False,
        local_commands=True,
        deny_command=("get",),
        max_clients=7,
        max_clients_per_address=3,
        idle_timeout_s=5.0,
        write_timeout_s=6.0,
    )
    found.configure(config)
    assert found.refusal(THERE, 6, 2) is None
    assert found.refusal(THERE, 7, 0) is admission.FULL
    assert found.refusal(THERE, 6, 3) is admission.FULL_ADDRESS
    assert found.table_of(THERE).rows[b"DEBUG"].ban is None
    assert found.table_of(THERE).rows[b"GET"].ban is not None
    assert (found.idle_timeout_s, found.write_timeout_s) == (5.0, 6.0)
