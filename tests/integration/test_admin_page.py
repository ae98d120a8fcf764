"""The live page in a browser, in front of a real proxy."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import harness
from tests.browser import Browser, browser, executable
from tests.harness import RedisServer, wait_until
from tests.integration.started import Started, by_lane, started
from tests.integration.test_admin import HERE

WIDTHS = (390, 768, 1180)
HOSTILE = b"<img src=x onerror=alert(1)>\x00\xff\r\n\xe2\x80\xaeabc"
SHOWN = "<img src=x onerror=alert(1)>\\x00\\xff\\x0d\\x0a\\xe2\\x80\\xaeabc"

# The contrast (WCAG 2) of every visible text with its background, where it is below 4.5.
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

# For each kind of hits: hue of its colour, in degrees, and lightness.
COLOURS = """
Object.fromEntries(["admitted", "refused", "local", "without", "shadow"].map(name => {
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


def opened(page: Browser, made: Started) -> str:
    """Open the page of a proxy; return its address."""
    where = made.logged(r"  admin +(http://\S+)\n")[1]
    page.open(where)
    wait_until(lambda: page.text("main"), "the page has been answered")
    return where


def shows(page: Browser, selector: str, text: str) -> None:
    wait_until(
        lambda: text in page.text(selector), f"{selector} shows {text!r}: {page.text(selector)!r}"
    )


def fits_and_is_legible(page: Browser) -> None:
    """Whether the page fits all widths and is legible in both colour schemes."""
    grounds = set()
    for dark in (False, True):
        for width in WIDTHS:
            page.look(width, dark=dark)
            found = page.value("[document.documentElement.scrollWidth, innerWidth]")
            assert found[0] <= found[1] == width
        assert page.value(CONTRAST) == []
        grounds.add(page.value("getComputedStyle(document.documentElement).backgroundColor"))
    assert len(grounds) == 2


def no_axe_violations(page: Browser) -> None:
    """Fail on a violation that axe-core reports, in both schemes, at phone and screen width."""
    places = os.environ.get("NODE_PATH", "").split(os.pathsep) + [
        str(harness.ROOT / ".venv/node/node_modules")
    ]
    scripts = [Path(place, "axe-core", "axe.min.js") for place in places if place]
    script = next((each for each in scripts if each.exists()), None)
    if script is None:
        pytest.skip("no axe-core: npm install --prefix .venv/node axe-core")
    page.value(script.read_text() + "; 0")
    for dark in (False, True):
        for width in (WIDTHS[0], WIDTHS[-1]):
            page.look(width, dark=dark)
            page.value("window.found = null; axe.run().then(found => { window.found = found }); 0")
            wait_until(lambda: page.value("window.found !== null"), "axe has looked at the page")
            found = page.value(
                "found.violations.map(each => [each.id, each.nodes.map(node => node.html)])"
            )
            assert found == [], (dark, width)
    assert page.value("found.passes.length") > 20


def stop_polling(page: Browser) -> None:
    """Stop the page's polling, so that the test chooses the data it shows."""
    page.value("ask = () => { document.body.dataset.asks = 'no more'; }")
    wait_until(lambda: page.value("document.body.dataset.asks"), "polling has stopped")


def hue_distance(one: float, other: float) -> float:
    """The distance of two hues, in degrees."""
    return abs((one - other + 180) % 360 - 180)


def each_kind_has_its_hue(page: Browser) -> None:
    """Hues are the same in light and dark schemes, and no two kinds are confused."""
    schemes = []
    for dark in (False, True):
        page.look(1180, dark=dark)
        schemes.append(page.value(COLOURS))
    light, dimmed = schemes
    for kind, (hue, _) in light.items():
        assert hue_distance(hue, dimmed[kind][0]) < 10, kind
        for other in set(light) - {kind}:
            assert hue_distance(hue, light[other][0]) > 20, (kind, other)
            assert hue_distance(dimmed[kind][0], dimmed[other][0]) > 20, (kind, other)
    # Readers who cannot distinguish the hues see the same one as the darker.
    for scheme in schemes:
        assert scheme["refused"][1] < scheme["local"][1]


def show_changed(page: Browser, change: str) -> None:
    """Show the page's last data with a change."""
    page.value(f"(() => {{ const view = structuredClone(latest); {change}; show(view); }})()")


def test_empty_page_explains_hits_and_then_shows_counts(
    page: Browser, own_server: RedisServer
) -> None:
    upstream = own_server.url
    with started(*HERE, "--upstream", upstream, "--workers", "2") as made:
        where = opened(page, made)
        shows(page, "#empty", f"redis-cli -p {made.port()} RL.HIT user:42 5 60")
        fits_and_is_legible(page)
        with made.raw() as raw:
            for _ in range(7):
                assert isinstance(raw.ask("RL.HIT", HOSTILE, 5, 60), list)
            shows(page, "#totals", "7 hits since the start")
            shows(page, "#busiest", SHOWN)
            shows(page, "#refused", SHOWN)
            by_lane(own_server, raw)
            shows(page, "#numbers", "admitted")
            shows(page, "#clients dd", "1 of ")
            shows(page, "#redis dd", "up")
            shows(page, "#lanes", "default")
            shows(page, "#addresses", "127.0.0.1")
            shows(page, "#workers", "serves")
            shows(page, "#where", f"127.0.0.1:{made.port()} → 127.0.0.1:{own_server.port}")
            each_kind_has_its_hue(page)
            assert page.text("#empty") == page.text("#lost") == page.text("#mode") == ""
            areas = "document.querySelectorAll('#chart path').length"
            wait_until(lambda: page.value(areas) >= 3, "there is a chart")
            fits_and_is_legible(page)
            # Markup that no key may inject.
            assert page.value("document.querySelectorAll('img, iframe, main script').length") == 0
        assert page.complaints == []
        assert set(page.fetched) <= {where, f"{where}live.json"}


def test_singular_forms_and_estimates_are_marked(page: Browser, own_server: RedisServer) -> None:
    with started(*HERE, "--upstream", own_server.url) as made:
        opened(page, made)
        with made.raw() as raw:
            raw.ask("RL.HIT", "a", 5, 60)
            shows(page, "#totals", "1 hit since the start")
            raw.ask("RL.HIT", "a", 5, 60)
            shows(page, "#totals", "2 hits since the start")
        shows(page, "#busiest tbody", "a\t2")
        assert page.text("#busiest ~ .note") == ""
        stop_polling(page)
        show_changed(page, "view.commands = 1; view.waiting = 1; view.denials = 1")
        assert page.text("#clients p") == "1 other command /s; 1 hit waits; 1 refusal remembered"
        show_changed(page, "view.commands = 0; view.waiting = 2; view.denials = 3")
        assert page.text("#clients p") == "0 other commands /s; 2 hits wait; 3 refusals remembered"
        show_changed(page, "view.busiest = [['big', 333000, 16000], ['small', 7000, 0]]")
        assert page.text("#busiest tbody").replace("\n", "").replace("\xa0", " ") == (
            "big\t333 k+16,000small\t7,000"
        )
        assert page.value("document.querySelector('#busiest td + td').dataset.hint") == (
            "333,000 to 349,000"
        )
        assert page.text("#busiest ~ .note").startswith("The first number is the least count")
        fits_and_is_legible(page)
        for lag, kind in (("[0.002, 0.09]", ""), ("[0.002, 0.3]", "bad-text")):
            show_changed(page, f"view.times.lag = {lag}")
            assert page.value("document.querySelector('#lag p').className") == kind
            assert page.value("document.querySelector('#lag dd').className") == ""
        show_changed(
            page, "view.upstream = {}; view.not_ready = ['worker 1 last reported long ago']"
        )
        assert (page.text("#state"), page.text("#mode")) == ("not ready", "")
        show_changed(page, "view.rejected = ['no option x']")
        assert page.text("#state") == "serving, settings rejected"
        assert page.value("document.querySelector('#state').dataset.hint") == "no option x"
        fits_and_is_legible(page)
        show_changed(page, "Object.assign(view.upstream, {up: false, workers: 2, seen_by: 1})")
        assert (
            page.text("#mode strong") == "Redis does not answer: hits of 1 of 2 workers get errors"
        )
        assert page.complaints == []


def test_page_reports_unreachable_redis_and_unreachable_proxy(
    page: Browser, own_server: RedisServer
) -> None:
    upstream = own_server.url
    with started(*HERE, "--upstream", upstream, "--on-upstream-failure", "allow") as made:
        opened(page, made)
        shows(page, "#redis p", "should it fail, hits are admitted (fail-open)")
        with made.raw() as raw:
            by_lane(own_server, raw)
            shows(page, "#trip p", "median; 99 % within ")
        own_server.stop()
        shows(page, "#mode strong", "FAIL-OPEN: all hits are admitted")
        shows(page, "#mode span", f"Redis at 127.0.0.1:{own_server.port} has not answered since ")
        assert page.text("#trip dd") == "\u2013"
        assert page.text("#trip p").startswith("Redis has been away since ")
        assert page.text("#redis dd").startswith("away for ")
        shows(page, "#redis p", "since ")
        shows(page, "#numbers", "without Redis")
        shows(page, "#state", "without Redis")
        fits_and_is_legible(page)
        own_server.start()
        wait_until(lambda: not page.text("#mode"), "Redis is back")
        assert page.complaints == []
        made.signal(signal.SIGKILL)
        made.wait()
        shows(page, "#lost", "No answer\nsince ")
        shows(page, "#state", "no answer")


# 120 seconds of admitted hits, `rate` in each: in view.history, older ones first.
HISTORY = """
const none = view.outcomes.map(() => 0);
const row = (age, rate) => [view.at - age, rate, ...none.slice(1)];
"""
TEXTS = "[...document.querySelectorAll('#chart text')].map(each => each.textContent)"


@pytest.fixture
def still_page(page: Browser, own_server: RedisServer) -> Iterator[Browser]:
    """The page of a proxy with one hit, with polling stopped."""
    with started(*HERE, "--upstream", own_server.url) as made:
        opened(page, made)
        with made.raw() as raw:
            raw.ask("RL.HIT", "a", 5, 60)
            shows(page, "#totals", "1 hit since the start")
        stop_polling(page)
        yield page
        assert page.complaints == []


@pytest.mark.parametrize(
    ("rate", "ticks"),
    [
        ("0.25", ["0", "0.1", "0.2", "0.3"]),
        ("3", ["0", "1", "2", "3"]),
        ("70", ["0", "20", "40", "60", "80"]),
        ("41000", ["0", "20\xa0k", "40\xa0k", "60\xa0k"]),
    ],
)
def test_axis_has_a_unit_and_fits_the_data(
    still_page: Browser, rate: str, ticks: list[str]
) -> None:
    show_changed(
        still_page, f"{HISTORY} view.history = [row(3, 0), row(2, {rate}), row(1, {rate} / 2)]"
    )
    assert still_page.value(TEXTS) == ["hits/s", *ticks, "2 min ago", "1 min", "now"]
    assert still_page.text("#hits-title") == "Hits per second"


def test_gaps_are_shown_as_gaps(still_page: Browser) -> None:
    show_changed(
        still_page,
        f"{HISTORY} view.history = [row(60, 5), row(59, 5), [view.at - 30], row(29, 5), row(28, 5),"
        "[view.at - 10], row(9, 5)]",
    )
    edges = still_page.value(
        "[...document.querySelectorAll('#chart .a-admitted')].map(path => path.getBBox())"
        ".map(box => [box.x, box.x + box.width, box.height])"
    )
    width = still_page.value("document.querySelector('#chart svg').clientWidth") - 46
    ages = [[round((1 - (edge - 44) / width) * 120) for edge in both] for *both, _ in edges]
    assert ages == [[60, 59], [29, 28], [10, 9]]
    assert len({round(height) for *_, height in edges}) == 1 and edges[0][2] > 50


def test_keyboard_reaches_the_hover_details(still_page: Browser) -> None:
    page = still_page
    show_changed(
        page,
        f"{HISTORY} view.history = [row(3, 7), row(2, 8), row(1, 9)];"
        "view.busiest = [['k'.repeat(200), 333000, 16000]]; view.not_ready = ['no script'];"
        "view.hits = view.hits.map(() => 1)",
    )
    reached = {}
    where = "document.activeElement"
    page.value("document.activeElement.blur()")
    for _ in range(40):
        page.press("Tab")
        found = page.value(f"[{where}.id || {where}.textContent, {where}.tagName]")
        if found[1] == "BODY" or found[0] in reached:
            break
        outline = page.value(f"getComputedStyle({where}).outlineStyle")
        assert outline == "solid", f"{found} has a visible focus"
        wait_until(
            lambda: page.text("#hint") == page.value(f"{where}.dataset.hint || ''"),
            "its hint is shown",
        )
        reached[found[0]] = page.text("#hint")
    assert reached["state"] == "no script"
    assert reached["refused locally"] == "refused by the denial cache, without Redis"
    assert reached["unseen"].startswith("in transactions")
    assert reached["k" * 200] == "k" * 200
    assert reached["333\xa0k+16,000"] == "333,000 to 349,000"
    assert {"metrics", "healthz", "readyz"} <= set(reached)
    hinted = page.value("document.querySelectorAll('[data-hint]').length")
    assert sum(text != "" for text in reached.values()) == hinted
    # The chart, second by second.
    page.value("document.querySelector('#chart svg').focus()")
    for key, expected in (
        ("Home", "3 s ago, admitted 7"),
        ("ArrowRight", "2 s ago, admitted 8"),
        ("End", "1 s ago, admitted 9"),
        ("ArrowRight", "1 s ago, admitted 9"),
        ("ArrowLeft", "2 s ago, admitted 8"),
    ):
        page.press(key)
        value = "document.querySelector('#chart svg').getAttribute('aria-valuetext')"
        assert page.value(value).startswith("2 s ago" if "2 s" in expected else expected[:7])
        assert expected.rpartition(", ")[2] in page.value(value)
        assert page.text("#tip").startswith(expected.partition(",")[0])
    page.value("document.activeElement.blur()")
    assert page.text("#tip") == ""


def test_axe_reports_no_violation(page: Browser, own_server: RedisServer) -> None:
    """With all tables, with Redis unreachable, and before the first hit."""
    options = ("--metrics-prefixes", "10", "--on-upstream-failure", "allow")
    with started(*HERE, "--upstream", own_server.url, *options) as made:
        opened(page, made)
        no_axe_violations(page)
        with made.raw() as raw:
            for _ in range(7):
                raw.ask("RL.HIT", "user:1", 5, 60)
            by_lane(own_server, raw)
            shows(page, "#lanes", "default")
            wait_until(
                lambda: page.value("document.querySelectorAll('#chart path').length"),
                "there is a chart",
            )
            no_axe_violations(page)
        own_server.stop()
        shows(page, "#mode strong", "FAIL-OPEN")
        no_axe_violations(page)


def test_prefixes_are_shown_where_they_are_counted(page: Browser, own_server: RedisServer) -> None:
    upstream = ("--upstream", own_server.url)
    with started(*HERE, *upstream, "--metrics-prefixes", "10") as made:
        opened(page, made)
        assert page.text(".prefixes") == ""
        with made.raw() as raw:
            for key in ("user:1", "user:2", "user:2", "login:3"):
                raw.ask("RL.HIT", key, 1, 60)
        shows(page, "#prefixes tbody", "user\t3\t1")
        shows(page, "#prefixes tbody", "login\t1\t0")
        fits_and_is_legible(page)


def test_policies_are_shown_where_they_are_used(
    page: Browser, own_server: RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "rlproxy.toml"
    file.write_text('[policies]\nlogin = "1 60"\ntrial = {rule = "1 60", shadow = true}\n')
    upstream = ("--upstream", own_server.url, "--config", str(file))
    with started(*HERE, *upstream) as made:
        opened(page, made)
        with made.raw() as raw:
            raw.ask("RL.HIT", "user:2", 5, 60)
            shows(page, "#busiest tbody", "user:2")
            assert page.text(".policies") == ""
            assert "in shadow" not in page.text("#numbers")
            for _ in range(4):
                raw.ask("RL.HIT", "user:1", "POLICY", "login")
                raw.ask("RL.HIT", "user:3", "POLICY", "trial")
        shows(page, "#refused tbody", "user:1\tlogin\t3")
        shows(page, "#refused tbody", "user:3\ttrial\t3")
        shows(page, "#policies tbody", "login\tenforced")
        shows(page, "#numbers", "refused in shadow")
        areas = "!!document.querySelector('#chart .a-shadow')"
        wait_until(lambda: page.value(areas), "the chart has refusals in shadow")
        fits_and_is_legible(page)
        no_axe_violations(page)
        stop_polling(page)
        rows = [["login", "enforced", 40, 10, 0], ["trial", "shadow", 0, 0, 0]]
        show_changed(page, f"view.policies = {json.dumps(rows)}")
        assert page.text("#policies tbody").replace("\n", "").replace("\xa0", " ") == (
            "login\tenforced\t40\t1025.0 %\t00.0 %trial\tshadow\t0\t0\t0"
        )
    assert page.complaints == []


# -- actions ---------------------------------------------------------------------------------------

TOKEN = "a-token-of-the-page-0123456789"


@pytest.fixture
def with_actions(own_server: RedisServer, tmp_path: Path) -> Iterator[Started]:
    """A proxy with actions."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    actions = ("--admin-actions", "--admin-token-file", str(path))
    with started(*HERE, "--upstream", own_server.url, *actions) as made:
        yield made


def fill(page: Browser, **fields: str) -> None:
    """Type texts into the form, as a user does with the keyboard."""
    for name, text in fields.items():
        page.value(f"document.querySelector('#actions [name={name}]').select()")
        page.ask("Input.insertText", text=text)


def act(page: Browser, action: str, shown: str) -> str:
    """Press a button of the form by keyboard; return the text that contains `shown`."""
    page.value(f"document.querySelector('#actions button[value={action}]').focus()")
    page.value("document.querySelector('#acted').textContent = ''")
    page.ask("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    page.ask("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    shows(page, "#acted", shown)
    return page.text("#acted")


def click(page: Browser, selector: str) -> None:
    """Click the middle of an element."""
    found = f"document.querySelector({selector!r})"
    page.value(f"{found}.scrollIntoView({{block: 'center'}})")
    box = page.value(f"{found}.getBoundingClientRect().toJSON()")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for kind in ("mousePressed", "mouseReleased"):
        page.ask(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )


def test_form_looks_up_and_resets_a_clicked_key(
    page: Browser, with_actions: Started, own_server: RedisServer
) -> None:
    where = opened(page, with_actions)
    field = "document.querySelector('#actions [name=key]').value"
    with with_actions.raw() as raw:
        for _ in range(7):
            raw.ask("RL.HIT", HOSTILE, 5, 60)
        shows(page, "#busiest", SHOWN)
        click(page, "#busiest tbody td")
        assert page.value(field) == SHOWN
        assert page.value("document.activeElement.name") == "key"
        fill(page, token="wrong", rule="5 60")
        assert act(page, "peek", "wrong token") == "wrong token"
        assert page.value("document.querySelector('#acted').className") == "bad-text"
        page.complaints.clear()  # the browser's own line about status 401
        fill(page, token=TOKEN)
        text = act(page, "peek", "refused")
        assert page.value("document.querySelector('#acted').className") == ""
        assert text.startswith("A hit would be refused. Retry after ")
        assert "Remaining: 0 of 5. Reset after 60\xa0s (" in text or "Reset after 5" in text
        fill(page, rule="9 60000 ms")
        text = act(page, "peek", "admitted")
        assert text.startswith("A hit would be admitted. Remaining: 4 of 9. Reset after ")
        assert "\xa0ms (" in text
        fits_and_is_legible(page)
        assert act(page, "reset", "removed") == "The key was removed."
        assert raw.ask("EXISTS", HOSTILE) == 0
        assert act(page, "reset", "no such key") == "There is no such key."
        fill(page, rule="5 60")
        text = act(page, "peek", "unused")
        assert text == "A hit would be admitted. Remaining: 5 of 5. The limiter is unused."
        fill(page, rule="0 60")
        assert "out of range" in act(page, "peek", "out of range")
    page.complaints.clear()
    own_server.stop()
    assert "UPSTREAMDOWN" in act(page, "reset", "UPSTREAMDOWN")
    assert set(page.fetched) <= {where, f"{where}live.json", f"{where}actions"}
    for secret in ("localStorage", "sessionStorage", "document.cookie"):
        assert TOKEN not in page.value(f"JSON.stringify({secret})")


def test_form_blocks_and_unblocks(page: Browser, with_actions: Started) -> None:
    opened(page, with_actions)
    fill(page, token=TOKEN, key="k", rule="5 60 ALGO TOKEN")
    assert act(page, "block", "Blocked").startswith("Blocked for 600\xa0s (")
    assert act(page, "peek", "refused").startswith("A hit would be refused. Retry after ")
    assert act(page, "unblock", "not blocked") == "The key is not blocked."
    assert act(page, "peek", "admitted").startswith("A hit would be admitted. Remaining: 5 of 5.")
    assert page.complaints == []


def test_form_reloads_the_settings_without_a_key(page: Browser, with_actions: Started) -> None:
    opened(page, with_actions)
    fill(page, token=TOKEN)
    act(page, "reload", "The settings were read again, and are in force.")
    with_actions.logged("INFO SIGHUP: settings and certificates were read again")
    assert page.complaints == []


def test_form_uses_no_key_of_which_a_part_is_shown(page: Browser, with_actions: Started) -> None:
    opened(page, with_actions)
    with with_actions.raw() as raw:
        raw.ask("RL.HIT", "short", 5, 60)
        shows(page, "#busiest", "short")
        stop_polling(page)
        hashed, cut = "k" * 105 + "..." + "0123456789abcdef0123", "\\x00" * 50 + "…"
        rows = [[hashed, 2, 0], [cut, 1, 0], ["whole", 1, 0]]
        page.value(f"latest.busiest = latest.refused = {json.dumps(rows)}; show(latest)")
    field = "document.querySelector('#actions [name=key]').value"
    for row in (1, 2):
        click(page, f"#busiest tbody tr:nth-child({row}) td")
        assert page.text("#acted") == "The page has only a part of this key."
        assert page.value(field) == ""
    click(page, "#busiest tbody tr:nth-child(3) td")
    assert (page.value(field), page.text("#acted")) == ("whole", "")
    offered = "[...document.querySelectorAll('#known-keys option')].map(each => each.value)"
    assert page.value(offered) == ["whole"]


def test_form_is_accessible(page: Browser, with_actions: Started) -> None:
    opened(page, with_actions)
    no_axe_violations(page)
    fits_and_is_legible(page)
    reached = []
    page.value("document.activeElement.blur()")
    for _ in range(40):
        page.press("Tab")
        found = page.value("document.activeElement.name || document.activeElement.value || ''")
        if found:
            assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            reached.append(found)
        if found == "reload":
            break
    fields, buttons = ["token", "key", "rule", "seconds"], "peek block unblock reset reload"
    assert reached == fields + buttons.split()
    assert page.complaints == []


def test_page_without_actions_has_no_form(still_page: Browser) -> None:
    assert still_page.value("document.querySelectorAll('form, input, button').length") == 0
