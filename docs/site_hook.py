"""A hook of mkdocs: the README is the site's first page, and links from docs/ to what lies beside it work there too.

.venv/bin/mkdocs serve -f conf/mkdocs.yml
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "notebooks/**/*.py",
    "notebooks/examples/node/*.js",
    "notebooks/examples/java/*.java",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds to the pages what they link to outside of docs/."""
    for path in (path for pattern in BESIDE for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links as they are in the repository into those of the site, where docs/ is the top."""
    markdown = markdown.replace(r"\|", "|")  # in a table's code GitHub needs the backslash, and the site shows it
    if (ROOT / page.file.src_uri).exists():  # beside docs/
        return markdown.replace("](docs/", "](")
    depth = page.file.src_uri.count("/")
    return re.sub(rf"\]\((\.\./){{{depth + 1}}}", "](" + "../" * depth, markdown)
