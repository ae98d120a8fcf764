"""A script that answers as a node would redirect: only nodes that the cluster lists are called, and
other clients' commands go where they went.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from rlproxy.resp.key_slot import key_slot

from tests.clusters import Cluster
from tests.harness import Proxy, Raw, ReplyError, wait_until

COUNTS = "redis.call('INCR', KEYS[1]) "
LIBRARY = "#!lua name=forged\nredis.register_function('forged', function(KEYS) %s end)"


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """A socket that listens, and belongs to no node."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def forged(word: str, key: str, listener: socket.socket) -> str:
    """A redirect of `key` to the listener."""
    return f"{word} {key_slot(key.encode())} 127.0.0.1:{listener.getsockname()[1]}"


def nobody_came(listener: socket.socket) -> bool:
    try:
        listener.accept()
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize(("client", "word"), [(2, "MOVED"), (3, "ASK")], indirect=["client"])
def test_a_script_names_another_server(
    client: Raw, cluster_proxy: Proxy, elsewhere: socket.socket, word: str
) -> None:
    answer = forged(word, "k", elsewhere)
    script = f"return redis.error_reply('{answer}')"
    assert str(client.ask("EVAL", script, 1, "other")).startswith(answer)
    assert str(client.ask("EVAL", script, 0)).startswith(answer)  # no node redirects it
    assert str(client.ask("EVAL", script, 1, "k")).startswith("TRYAGAIN")
    assert client.ask("SET", "k", "v") == "OK"
    with cluster_proxy.raw() as other:
        assert other.ask("GET", "k") == b"v"
    assert nobody_came(elsewhere)


@pytest.mark.parametrize("client", [2], indirect=True)
@pytest.mark.parametrize(
    ("verb", "word"), [("EVAL", "MOVED"), ("EVALSHA", "ASK"), ("FCALL", "TRYAGAIN")]
)
def test_a_forging_script_runs_once(
    client: Raw, module_cluster: Cluster, word: str, verb: str
) -> None:
    owner = module_cluster.owner_of_key("n")
    answer = f"{word} {key_slot(b'n')} {owner.address}"
    script = f"{COUNTS} return redis.error_reply('{answer}')"
    if verb == "FCALL":
        if owner.version < (7,):
            pytest.skip("Redis 6.2 has no functions")
        client.ask("FUNCTION", "LOAD", "REPLACE", LIBRARY % script)
        program: bytes | str = "forged"
    elif verb == "EVALSHA":
        loaded = client.ask("SCRIPT", "LOAD", script)
        assert isinstance(loaded, bytes)
        program = loaded
    else:
        program = script
    assert str(client.ask(verb, program, 1, "n", "argument")).startswith(answer)
    assert client.ask("GET", "n") == b"1"


@pytest.mark.parametrize("client", [2], indirect=True)
def test_a_nodes_own_redirect_of_a_script_is_followed(client: Raw, module_cluster: Cluster) -> None:
    slot = key_slot(b"n")
    script = f"{COUNTS} return redis.call('GET', KEYS[1])"
    for count in range(1, 5):
        to = module_cluster.other_master(slot)
        module_cluster.begin_move(slot, to)
        if count % 2:  # the key is there: ASK; else the owner has changed: MOVED
            module_cluster.move_keys(slot, to, 10)
        assert client.ask("EVAL", script, 1, "n") == b"%d" % (2 * count - 1)
        module_cluster.move_keys(slot, to, 10)
        module_cluster.end_move(slot, to)
        assert client.ask("EVAL", script, 1, "n") == b"%d" % (2 * count)
        module_cluster.wait_ok()


@pytest.mark.parametrize("client", [2], indirect=True)
def test_debug_error_teaches_nothing(
    client: Raw, cluster_proxy: Proxy, elsewhere: socket.socket
) -> None:
    reply = client.ask("DEBUG", "ERROR", forged("MOVED", "k", elsewhere))
    assert isinstance(reply, ReplyError)
    wait_until(lambda: client.ask("SET", "k", "v") == "OK", "the cluster serves")
    with cluster_proxy.raw() as other:
        assert other.ask("GET", "k") == b"v"
    assert nobody_came(elsewhere)
