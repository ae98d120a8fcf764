"""The common parts of all pictures: frame of an SVG with a text alternative, numbers, text."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

LETTER: Final = 6.6  # approximate width of a letter in the style below

# Both colour schemes include a background: an image can't always detect the page's scheme.
STYLE: Final = """\
.card{fill:#fff;stroke:#d1d9e0}text{fill:#1f2328;font:13px system-ui,sans-serif}
.name{font-size:17px;font-weight:600}.rule{font:13px ui-monospace,monospace}.soft{fill:#59636e}
.grid{stroke:#d1d9e0}.axis{stroke:#59636e}"""
DARK: Final = """\
.card{fill:#0d1117;stroke:#3d444d}text{fill:#e6edf3}.soft{fill:#9198a1}.grid{stroke:#3d444d}
.axis{stroke:#9198a1}"""


def opening(width: int, height: int, title: str, alt: str, style: str) -> list[str]:
    """Return the first lines: title, text alternative (`alt`), style and card.

    The caller appends </svg>.
    """
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    return [
        f'<svg {head} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(alt)}</desc>',
        f"<style>{style}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
    ]


def number(value: float) -> str:
    """Format a coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    """Return a text element of class `kind`; it begins at `x` unless `anchor` is middle or end."""
    where = f'x="{number(x)}" y="{number(y)}"'
    kinds = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f"<text {where}{kinds}>{escape(words)}</text>"
