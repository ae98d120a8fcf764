"""Make the links of the pages work on the site as they do in the repository.

Pages outside of docs/ are added to the site, other files are served as they are, and links to both
are rewritten.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# A fenced block, which holds no link, or the target of a link.
LINK = re.compile(r"^```.*?^```$|(?<=\]\()(?P<target>[^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)
CODE_IN_TABLE = re.compile(r"^\| `[^`\n]*`", re.MULTILINE)


def page_of(name: str) -> str:
    """Where a page of the repository's own directory is on the site."""
    return name.lower()


def rewritten(target: str, directory: str) -> str:
    """A link on a page of `directory` (of the repository), for the site.

    The site has the pages of the repository's own directory beside those of docs/. Links that lead
    out of the repository stay as they are.
    """
    if re.match(r"[a-z]+:|#", target):
        return target
    name, anchor, fragment = target.partition("#")
    path = posixpath.normpath(posixpath.join(directory, name))
    if path.startswith("docs/"):
        path = path.removeprefix("docs/")
    elif path.endswith(".md") and "/" not in path:
        path = page_of(path)
    return posixpath.relpath(path, place(directory)) + anchor + fragment


def place(directory: str) -> str:
    """Where the pages of `directory` (of the repository) are on the site."""
    return "." if directory == "docs" else directory.removeprefix("docs/") or "."


def markdown_of(text: str, directory: str) -> str:
    """A page with its links rewritten, those in fenced blocks left alone.

    Code in tables keeps its bars without the backslash that GitHub needs and Python-Markdown shows.
    """
    text = CODE_IN_TABLE.sub(lambda code: code[0].replace(r"\|", "|"), text)
    return LINK.sub(lambda link: rewritten(link[0], directory) if link["target"] else link[0], text)


def directory_of(page: Path) -> str:
    """The directory of a page in the repository: "", "docs" or "docs/decisions"."""
    directory = page.parent.relative_to(ROOT).as_posix()
    return "" if directory == "." else directory


def linked() -> set[str]:
    """Files outside of docs/ that some page links to, by their paths in the repository."""
    found = set()
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        directory = directory_of(page)
        for link in filter(None, LINK.findall(page.read_text())):
            target = rewritten(link, directory).partition("#")[0]
            path = posixpath.normpath(posixpath.join(place(directory), target))
            of_root = path.endswith(".md") and "/" not in path  # always on the site
            if not of_root and (ROOT / path).is_file():
                found.add(path)
    return found


# -- called by mkdocs ------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Put the pages that the nav leaves out at its end, except for the records of decisions."""
    pages = {page_of(path.name) for path in ROOT.glob("*.md")}
    pages |= {path.name for path in (ROOT / "docs").glob("*.md")}
    left_out = pages - set(re.findall(r"[\w.-]+\.md", str(config["nav"])))
    if left_out:
        config["nav"].append({"More": sorted(left_out)})
    return config


def on_files(files: Any, config: Any) -> Any:
    """The pages of the repository's own directory, and the files that are linked to."""
    file = importlib.import_module("mkdocs.structure.files").File
    for path in sorted(ROOT.glob("*.md")):
        files.append(file.generated(config, page_of(path.name), abs_src_path=os.fspath(path)))
    for name in sorted(linked()):
        files.append(file.generated(config, name, abs_src_path=os.fspath(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """With its links as they have to be here."""
    return markdown_of(markdown, directory_of(Path(page.file.abs_src_path)))
