"""The live page in a browser, in front of a real proxy."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests import harness
from tests.browser import Browser, browser, executable
from tests.harness import RedisServer, wait_until
from tests.integration.started import Started, by_lane, started

HERE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
WIDTHS = (390, 768, 1180)
HOSTILE = b"<img src=x onerror=alert(1)>\x00\xff\r\n\xe2\x80\xaeabc"
SHOWN = "<img src=x onerror=alert(1)>\\x00\\xff\\x0d\\x0a\\xe2\\x80\\xaeabc"

# Of every text that is seen: its contrast with what is behind it (WCAG 2), where that is below 4.5.
CONTRAST = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(each => each / 255)
    .map(each => each <= .03928 ? each / 12.92 : ((each + .055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [.2126, .7152, .0722][at], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const found = parse(getComputedStyle(each).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.getClientRects().length) continue;
    if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
    const style = getComputedStyle(element), svg = element instanceof SVGElement;
    const pair = [light(parse(svg ? style.fill : style.color)), light(behind(element))];
    const ratio = (Math.max(...pair) + .05) / (Math.min(...pair) + .05);
    if (ratio < 4.5) low.push(walker.currentNode.data.trim() + " " + ratio.toFixed(2));
  }
  return low;
})()
"""

# Of each kind of hits: hue, in degrees, and lightness of its colour.
COLOURS = """
Object.fromEntries(["admitted", "refused", "local", "without"].map(name => {
  const mark = document.querySelector(".i-" + name);
  const [r, g, b] = getComputedStyle(mark).backgroundColor.match(/\\d+/g).map(Number);
  const most = Math.max(r, g, b), span = most - Math.min(r, g, b);
  const hue = most === r ? (g - b) / span : most === g ? 2 + (b - r) / span : 4 + (r - g) / span;
  return [name, [(60 * hue + 360) % 360, .299 * r + .587 * g + .114 * b]];
}))
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = executable()
    if path is None:
        pytest.skip("no Chromium on this machine")
    with browser(path) as made:
        yield made


@pytest.fixture
def page(chromium: Browser) -> Browser:
    chromium.open("about:blank")
    chromium.complaints.clear()
    chromium.fetched.clear()
    chromium.look(1180)
    return chromium


@pytest.fixture
def server(one_engine: str) -> Iterator[RedisServer]:
    with harness.server(one_engine) as made:
        yield made


def opened(page: Browser, made: Started) -> str:
    """Go to the page of a proxy; where that is."""
    where = made.logged(r"  admin +(http://\S+)\n")[1]
    page.open(where)
    wait_until(lambda: page.text("main"), "the page has been answered")
    return where


def shows(page: Browser, selector: str, text: str) -> None:
    wait_until(
        lambda: text in page.text(selector), f"{selector} shows {text!r}: {page.text(selector)!r}"
    )


def fits_and_is_read(page: Browser) -> None:
    """In all widths and both schemes of colours."""
    grounds = set()
    for dark in (False, True):
        for width in WIDTHS:
            page.look(width, dark=dark)
            found = page.value("[document.documentElement.scrollWidth, innerWidth]")
            assert found[0] <= found[1] == width
        assert page.value(CONTRAST) == []
        grounds.add(page.value("getComputedStyle(document.documentElement).backgroundColor"))
    assert len(grounds) == 2


def apart(one: float, other: float) -> float:
    """Two hues, in degrees."""
    return abs((one - other + 180) % 360 - 180)


def each_kind_keeps_its_hue(page: Browser) -> None:
    """From light to dark, and none is taken for another."""
    schemes = []
    for dark in (False, True):
        page.look(1180, dark=dark)
        schemes.append(page.value(COLOURS))
    light, dimmed = schemes
    for kind, (hue, _) in light.items():
        assert apart(hue, dimmed[kind][0]) < 10, kind
        for other in set(light) - {kind}:
            assert apart(hue, light[other][0]) > 20, (kind, other)
            assert apart(dimmed[kind][0], dimmed[other][0]) > 20, (kind, other)
    # (and those that cannot tell the hues see the same one as the darker)
    for scheme in schemes:
        assert scheme["refused"][1] < scheme["local"][1]


def later(page: Browser, change: str) -> None:
    """Show what the page got last, changed."""
    page.value(f"(() => {{ const view = structuredClone(latest); {change}; show(view); }})()")


def test_it_teaches_and_then_shows_what_was_counted(page: Browser, server: RedisServer) -> None:
    upstream = f"redis://127.0.0.1:{server.port}"
    with started(*HERE, "--upstream", upstream, "--workers", "2") as made:
        where = opened(page, made)
        shows(page, "#empty", f"redis-cli -p {made.port()} RL.HIT user:42 5 60")
        fits_and_is_read(page)
        with made.raw() as raw:
            for _ in range(7):
                assert isinstance(raw.ask("RL.HIT", HOSTILE, 5, 60), list)
            shows(page, "#totals", "7 hits since the start")
            shows(page, "#busiest", SHOWN)
            shows(page, "#refused", SHOWN)
            by_lane(server, raw)
            shows(page, "#numbers", "admitted")
            shows(page, "#clients dd", "1 of ")
            shows(page, "#redis dd", "up")
            shows(page, "#lanes", "default")
            shows(page, "#addresses", "127.0.0.1")
            shows(page, "#workers", "serves")
            shows(page, "#where", f"127.0.0.1:{made.port()} → 127.0.0.1:{server.port}")
            each_kind_keeps_its_hue(page)
            assert page.text("#empty") == page.text("#lost") == page.text("#mode") == ""
            areas = "document.querySelectorAll('#chart path').length"
            wait_until(lambda: page.value(areas) >= 3, "there is a chart")
            fits_and_is_read(page)
            # what no key may do, whoever chose it
            assert page.value("document.querySelectorAll('img, iframe, main script').length") == 0
        assert page.complaints == []
        assert set(page.fetched) <= {where, f"{where}live.json"}


def test_one_is_no_plural_and_estimates_are_told_as_such(
    page: Browser, server: RedisServer
) -> None:
    with started(*HERE, "--upstream", f"redis://127.0.0.1:{server.port}") as made:
        opened(page, made)
        with made.raw() as raw:
            raw.ask("RL.HIT", "a", 5, 60)
            shows(page, "#totals", "1 hit since the start")
            raw.ask("RL.HIT", "a", 5, 60)
            shows(page, "#totals", "2 hits since the start")
        shows(page, "#busiest tbody", "a\t2")
        assert page.text("#busiest ~ .note") == ""
        # what is shown is chosen from here on
        page.value("ask = () => { document.body.dataset.asks = 'no more'; }")
        wait_until(lambda: page.value("document.body.dataset.asks"), "it asks no more")
        later(page, "view.commands = 1; view.waiting = 1; view.denials = 1")
        assert page.text("#clients p") == "1 other command /s; 1 hit waits; 1 refusal remembered"
        later(page, "view.commands = 0; view.waiting = 2; view.denials = 3")
        assert page.text("#clients p") == "0 other commands /s; 2 hits wait; 3 refusals remembered"
        later(page, "view.busiest = [['big', 333000, 16000], ['small', 7000, 0]]")
        assert page.text("#busiest tbody").replace("\n", "").replace("\xa0", " ") == (
            "big\t333 k+16,000small\t7,000"
        )
        title = "document.querySelector('#busiest td + td').title"
        assert page.value(title) == "333,000 to 349,000"
        assert page.text("#busiest ~ .note").startswith("At least so many")
        fits_and_is_read(page)
        for lag, kind in (("[0.002, 0.09]", ""), ("[0.002, 0.3]", "bad-text")):
            later(page, f"view.times.lag = {lag}")
            assert page.value("document.querySelector('#lag p').className") == kind
            assert page.value("document.querySelector('#lag dd').className") == ""
        later(page, "view.upstream = {}; view.not_ready = ['worker 1 was last heard of long ago']")
        assert (page.text("#state"), page.text("#mode")) == ("not ready", "")
        later(page, "Object.assign(view.upstream, {up: false, asked: 2, seen_by: 1})")
        assert (
            page.text("#mode strong") == "Redis does not answer: hits of 1 of 2 workers get errors"
        )
        assert page.complaints == []


def test_it_says_when_redis_is_away_and_when_the_proxy_is(
    page: Browser, server: RedisServer
) -> None:
    upstream = f"redis://127.0.0.1:{server.port}"
    with started(*HERE, "--upstream", upstream, "--on-upstream-failure", "allow") as made:
        opened(page, made)
        shows(page, "#redis p", "should it fail, hits are admitted (fail-open)")
        with made.raw() as raw:
            by_lane(server, raw)
            shows(page, "#trip p", "median; 99 % within ")
        server.stop()
        shows(page, "#mode strong", "FAIL-OPEN: all hits are admitted")
        shows(page, "#mode span", f"Redis at 127.0.0.1:{server.port} has not answered since ")
        assert page.text("#trip dd") == "\u2013"
        assert page.text("#trip p").startswith("Redis has been away since ")
        assert page.text("#redis dd").startswith("away for ")
        shows(page, "#redis p", "since ")
        shows(page, "#numbers", "without Redis")
        shows(page, "#state", "without Redis")
        fits_and_is_read(page)
        server.start()
        wait_until(lambda: not page.text("#mode"), "Redis is back")
        assert page.complaints == []
        made.signal(signal.SIGKILL)
        made.wait()
        shows(page, "#lost", "No answer\nsince ")
        shows(page, "#state", "no answer")
