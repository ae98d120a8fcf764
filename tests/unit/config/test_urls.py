"""urls: addresses and URLs as text, and no password in any message."""

from __future__ import annotations

import pytest
from rlproxy.config import urls
from rlproxy.config.urls import Address, Sentinels, Upstream

from tests.unit.config.loading import load, mistakes

REDIS = Upstream(Address("h", 6379))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (":6380", "127.0.0.1:6380"),
        ("tls:h:1", "tls:h:1"),
        ("0.0.0.0:6380", "127.0.0.1:6380"),
        ("unix:a.sock", "unix:a.sock"),
        ("unix:/run/a.sock", "unix:/run/a.sock"),
        ("unix:///run/a.sock", "unix:/run/a.sock"),
        ("unix://u:p@/run/a.sock?db=1", "unix:/run/a.sock"),
        ("redis://h", "h:6379"),
        ("redis://u:p@[::1]:7000/3", "[::1]:7000"),
        ("rediss://:p@h:7000/?ssl_cert_reqs=none", "tls:h:7000"),
    ],
)
def test_address_of_a_running_proxy(text: str, where: str) -> None:
    assert str(urls.parse_running(text)) == where


@pytest.mark.parametrize(
    "text", ["", "h", "http://h", "redis://:secret@h:x", "redis+cluster://h", "a..b:1"]
)
def test_wrong_address_of_a_running_proxy(text: str) -> None:
    with pytest.raises(ValueError) as error:
        urls.parse_running(text)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["redis://h/1", "redis+sentinel://h/m/1", "redis+cluster://h/15"])
def test_clients_select_their_database(url: str) -> None:
    (line,) = mistakes("--upstream", url)
    assert line.endswith("it names a database: clients select theirs, in their own URLs")


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("redis://h?x=1", "standalone"),
        ("rediss://h?standalon=yes", "standalone"),
        ("unix:///s?x=1", "standalone"),
        ("redis+sentinel://h/m?db=1", "sentinel_user and sentinel_password"),
        ("redis+cluster://h?db=0", "none"),
        ("rediss+cluster://h?standalone=yes", "none"),
    ],
)
def test_unknown_parameters(url: str, known: str) -> None:
    (line,) = mistakes("--upstream", url)
    assert line.endswith(f"unknown parameter; this URL may have {known}")


LISTEN = [
    ("127.0.0.1:6380", Address("127.0.0.1", 6380)),
    (":6380", Address("127.0.0.1", 6380)),
    ("0.0.0.0:0", Address("0.0.0.0", 0)),
    ("localhost:65535", Address("localhost", 65535)),
    ("[::1]:6380", Address("::1", 6380)),
    ("unix:/tmp/s", Address(path="/tmp/s")),
    ("unix:///tmp/s", Address(path="/tmp/s")),
    ("unix:s", Address(path="s")),
]


@pytest.mark.parametrize(("text", "address"), LISTEN)
def test_listen(text: str, address: Address) -> None:
    assert urls.parse_listen(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "h", "h:", ":", "h:x", "h:65536", "[h]:1", "::1:6380", "unix:", "a..b:1", "a,b:1"),
        f"{64 * 'a'}:1",
    ],
)
def test_wrong_listen(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        urls.parse_listen(text)


def test_a_path_may_have_a_comma() -> None:
    assert urls.parse_listen("unix:/a,b") == Address(path="/a,b")


URLS = [
    ("embedded:", Upstream(None)),
    ("EMBEDDED:", Upstream(None)),
    ("redis://h", REDIS),
    ("redis://h/", REDIS),
    ("redis://h:7000", Upstream(Address("h", 7000))),
    ("redis://a.b.:7000", Upstream(Address("a.b.", 7000))),
    ("redis://h/0", REDIS),
    ("redis://[::1]:7000", Upstream(Address("::1", 7000))),
    ("redis://:pw@h", Upstream(Address("h", 6379), None, "pw")),
    ("redis://bob:pw@h", Upstream(Address("h", 6379), "bob", "pw")),
    ("redis://bob:@h", Upstream(Address("h", 6379), "bob", "")),
    ("redis://b%40b:p%3A%2F%23%3Fw@h", Upstream(Address("h", 6379), "b@b", "p:/#?w")),
    ("unix:///tmp/s", Upstream(Address(path="/tmp/s"))),
    ("unix://bob:pw@/tmp/s", Upstream(Address(path="/tmp/s"), "bob", "pw")),
    ("unix:///tmp/a%20b", Upstream(Address(path="/tmp/a b"))),
    # standalone
    ("redis://h?standalone=yes", Upstream(Address("h", 6379), standalone=True)),
    ("redis://h/0?standalone=YES", Upstream(Address("h", 6379), standalone=True)),
    ("rediss://h?standalone=yes", Upstream(Address("h", 6379), tls=True, standalone=True)),
    ("unix:///s?standalone=yes", Upstream(Address(path="/s"), standalone=True)),
    # Sentinel
    (
        "redis+sentinel://a,b:1,[::1]/m",
        Upstream(
            None,
            sentinels=Sentinels((Address("a", 26379), Address("b", 1), Address("::1", 26379)), "m"),
        ),
    ),
    (
        "rediss+sentinel://u:p@a/m/0?sentinel_user=x&sentinel_password=y%26",
        Upstream(None, "u", "p", True, Sentinels((Address("a", 26379),), "m", "x", "y&")),
    ),
    # a cluster
    ("redis+cluster://h", Upstream(None, cluster=(Address("h", 6379),))),
    ("REDIS+CLUSTER://H:7000/0", Upstream(None, cluster=(Address("h", 7000),))),
    (
        "rediss+cluster://u:p%40@a,b:1,[::1]/",
        Upstream(
            None,
            user="u",
            password="p@",
            tls=True,
            cluster=(Address("a", 6379), Address("b", 1), Address("::1", 6379)),
        ),
    ),
]


@pytest.mark.parametrize(("url", "upstream"), URLS)
def test_upstream(url: str, upstream: Upstream) -> None:
    assert urls.parse_upstream(url) == upstream
    assert load("--upstream", url).upstream == upstream
    assert upstream.embedded == url.lower().startswith("embedded:")
    if upstream.address is not None:
        assert str(upstream) == str(upstream.address)


WRONG_URLS = [
    *("", "h", "http://h", "redis:", "redis://", "redis:x://h", "redis://::1", "redis://[h]"),
    *("redis://h:0", "redis://h:65536", "redis://h:x", "redis://h/x", "redis://h/1"),
    *("redis://h?x=1", "redis://h?standalone=1", "redis://h#x", "redis://bob@h"),
    *("redis://.", "redis://a..b", "redis://:%FF@h", "redis://%FF:p@h"),
    *("unix://", "unix://h/tmp/s", "unix:///%FF", "embedded:x", "embedded://cluster"),
    *("redis+sentinel://h", "redis+sentinel://h,/m", "redis+sentinel://h:0/m"),
    *("redis+sentinel://h/m/3", "redis+sentinel://h/m?sentinel_user=x"),
    *("redis+sentinel://h/m?sentinel_password=%FF", f"redis+sentinel://{64 * 'a'}/m"),
    *("redis+cluster://", "redis+cluster://h:0", "redis+cluster://h/1", "redis+cluster://bob@h"),
    *("redis+cluster://h,a..b", "unix+cluster:///s"),
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_wrong_upstream(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        urls.parse_upstream(url)
    (line,) = mistakes("--upstream", url)
    assert line.startswith("--upstream")


SECRETS = [
    ["--upstream", "http://bob:secret@h"],
    ["--upstream", "redis://bob:secret@h:x"],
    ["--upstream", "redis://bob:secret@h?x=1"],
    ["--upstream", "redis://bob:secret@h#x"],
    ["--upstream", "redis://:12#secret@h"],
    ["--upstream", "redis://bob:12?secret=x@h"],
    ["--upstream", "redis://:12/secret@h"],
    ["--upstream", "redis://bob:12@secret@h:x"],
    ["--upstream", "redis://bob:secret@"],
    ["--upstream", "redis:bob:secret@h"],
    ["--upstream", "bob:secret@h:6379"],
    ["--upstream", "unix://bob:secret@h/s"],
    ["--upstream", "unix://bob:12/secret@/s?db=x"],
    ["--upstream", "embedded:secret@h"],
    ["--upstream", "redis+sentinel://h/m?x=1&sentinel_password=secret"],
    ["--upstream", "redis+sentinel://h/m?x&sentinel_password=a&secret"],
    ["--upstream", "redis+sentinel://bob:secret/m"],
    ["--upstream", "redis+cluster://bob:secret@h/1"],
    ["--upstream", "redis+cluster://bob:12,secret@h:x"],
    ["--upstream", "redis+cluster://bob:secret,h"],
    ["--upstream", "redis://bob:secret@h?standalone=secret"],
    ["--upstream", "redis://bob:secret"],
    ["--upstream", "redis://:12/secret"],
    ["--upstream", "redis://:12?secret"],
    ["--upstream", "redis://:secret 12@h:x"],
    ["--upstrem", "redis://:12", "secret@h"],
    ["--upstream", "redis://bob:secret@h\u2100"],
    ["--upstrem", "redis://bob:secret@h"],
    ["redis://bob:secret@h"],
    ["--upstrem=redis://bob:secret@h"],
]


@pytest.mark.parametrize("argv", SECRETS, ids=lambda argv: argv[-1])
def test_no_password_in_a_message(argv: list[str]) -> None:
    assert "secret" not in "\n".join(mistakes(*argv))
    if argv[0] == "--upstream":
        assert "secret" not in "\n".join(mistakes(RLPROXY_UPSTREAM=argv[1]))


def test_a_number_may_be_a_password() -> None:
    assert "123" not in "\n".join(mistakes("--upstream", "redis://:123"))


def test_no_password_in_what_is_shown() -> None:
    for url, shown in (
        ("redis://bob:secret@h:7000", "h:7000"),
        ("redis+sentinel://bob:secret@h/m?sentinel_password=secret", "sentinel h:26379/m"),
        ("redis+cluster://bob:secret@h,[::1]:7", "cluster h:6379,[::1]:7"),
    ):
        made = load("--upstream", url)
        for text in (repr(made), str(made), str(made.upstream), repr(made.upstream)):
            assert "secret" not in text
        assert str(made.upstream) == shown


ADDRESSES = [
    (Address("h", 1), "h:1"),
    (Address("::1", 1), "[::1]:1"),
    (Address(path="/s"), "unix:/s"),
    (Address("::1", 1, tls=True), "tls:[::1]:1"),
]


@pytest.mark.parametrize(("address", "text"), ADDRESSES)
def test_address_as_text(address: Address, text: str) -> None:
    assert str(address) == text
    assert urls.parse_listen(text) == address


ANNOUNCED = [
    ("redis.example.com:6380", Address("redis.example.com", 6380)),
    ("10.0.0.1:65535", Address("10.0.0.1", 65535)),
    ("[fd00::1]:1", Address("fd00::1", 1)),
]


@pytest.mark.parametrize(("text", "address"), ANNOUNCED)
def test_announce(text: str, address: Address) -> None:
    assert urls.parse_announce(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("h", ":1", "h:0", "h:x", "h:65536", "::1:5", "tls:h:1", "unix:/s", "redis://h:1"),
        *("a,b:1", "a b:1", "u@h:1", "h\u00e9:1", "0.0.0.0:1", "[::]:1", "unix:1", "tls:1"),
    ],
)
def test_wrong_announce(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|port|brackets"):
        urls.parse_announce(text)
