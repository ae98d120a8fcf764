"""What every page of a benchmark fulfils, and its pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import tables
from bench.plots import Image

SVG = "{http://www.w3.org/2000/svg}"
MAX_BYTES = 60_000  # of a picture
LETTER = 6.6  # approximate width of a letter


def check_page(text: str, title: str, images: Iterable[str], prefix: str) -> None:
    """Check a page in Markdown: its heading, the width of its lines, its pictures, its machine.

    images: names of all pictures.
    prefix: of these names.
    """
    assert text.startswith(f"# {title}\n")
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    for line in text.splitlines():
        assert len(line) <= tables.WIDTH or re.match(r"\||!\[", line), line
    assert not re.search(r"(?<![\w./:])/(home|root|tmp|usr|var|work)\b", text)
    shown = re.findall(r"!\[[^]]{20,}\]\(images/([\w.-]+)\)", text)
    assert sorted(shown) == sorted(images)
    assert all(name.startswith(prefix) for name in shown)
    assert "2026-01-02" in text
    assert "Some CPU" in text
    assert "- One turn of all.\n- And so on.\n" in text


def boxes(text: str) -> list[tuple[str, float, float, float, float]]:
    """The approximate place of each text of a picture: words, left, top, right, bottom."""
    found = []
    for one in ElementTree.fromstring(text).iter(f"{SVG}text"):
        words, style = str(one.text), str(one.get("style"))
        x, y = float(one.get("x", "")), float(one.get("y", ""))
        width = LETTER * len(words)
        anchor = re.search(r"text-anchor: (\w+)", style)
        left = {"middle": x - width / 2, "end": x - width}.get(anchor[1] if anchor else "", x)
        found.append((words, left, y - 10, left + width, y + 3))
    return found


def check_pictures(images: Mapping[str, Image], again: Iterable[Image]) -> None:
    """Check the pictures of a page: accessible, small, labels apart from each other and inside.

    images: by name; not none.
    again: the same pictures, drawn once more.
    """
    assert {image.name: image.text for image in again} == {
        name: image.text for name, image in images.items()
    }
    assert images
    for name, image in images.items():
        _check_accessible(image, name)
        _check_labels(image.text, name)


def _check_accessible(image: Image, name: str) -> None:
    text = image.text
    assert len(text.encode()) < MAX_BYTES, name
    root = ElementTree.fromstring(text)
    ids = {child.get("id"): child for child in root if child.get("id")}
    assert root.get("role") == "img", name
    labels = [ids[label] for label in str(root.get("aria-labelledby")).split()]
    assert [label.tag for label in labels] == [f"{SVG}title", f"{SVG}desc"], name
    assert all(label.text for label in labels), name
    assert "prefers-color-scheme:dark" in str(root.findtext(f"{SVG}style")), name
    assert not re.search('href="(?!#)', text), name
    assert "url(" not in text, name
    assert image.alt, name


def _check_labels(text: str, name: str) -> None:
    _, _, width, height = map(float, str(ElementTree.fromstring(text).get("viewBox")).split())
    found = boxes(text)
    assert len(found) > 10, name
    for at, (words, left, top, right, bottom) in enumerate(found):
        assert 0 <= left < right <= width, (name, words)
        assert 0 <= top < bottom <= height, (name, words)
        for other, begin, above, end, below in found[at + 1 :]:
            apart = right <= begin or end <= left or bottom <= above or below <= top
            assert apart, f"{words!r} stands on {other!r} in {name}"


def check_invalid_result(
    main: Callable[[list[str]], int],
    text: str | None,
    named: str,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that a command line that makes a page rejects a file, in one line with `named`.

    text: what the file contains; None for a file that is missing.
    directory: an empty one.
    """
    path = directory / "x.json"
    if text is not None:
        path.write_text(text)
    assert main([str(path), str(directory / "page.md")]) == 2
    reported = capsys.readouterr().err
    assert reported.startswith(f"bench: {path}: ")
    assert reported.count("\n") == 1
    assert named in reported
    assert not (directory / "page.md").exists()
