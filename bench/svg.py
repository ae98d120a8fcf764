"""What all pictures share: the frame of an SVG with its words for everybody, numbers and text."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

LETTER: Final = 6.6  # about the width of one in the text below

# Both schemes carry their own background: an image does not always know the page's.
STYLE: Final = """\
.card{fill:#fff;stroke:#d1d9e0}text{fill:#1f2328;font:13px system-ui,sans-serif}
.name{font-size:17px;font-weight:600}.rule{font:13px ui-monospace,monospace}.soft{fill:#59636e}
.grid{stroke:#d1d9e0}.axis{stroke:#59636e}"""
DARK: Final = """\
.card{fill:#0d1117;stroke:#3d444d}text{fill:#e6edf3}.soft{fill:#9198a1}.grid{stroke:#3d444d}
.axis{stroke:#9198a1}"""


def opening(width: int, height: int, title: str, told: str, style: str) -> list[str]:
    """The first lines: title, the picture in words (`told`), style and card. Ends with </svg>."""
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    return [
        f'<svg {head} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(told)}</desc>',
        f"<style>{style}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
    ]


def number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    """`words` in the style's class `kind`, from x on unless `anchor` is middle or end."""
    where = f'x="{number(x)}" y="{number(y)}"'
    kinds = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f"<text {where}{kinds}>{escape(words)}</text>"
