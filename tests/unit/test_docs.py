"""The documents match the code: tables, keys and vectors, links, names of things that exist, and the site."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import commitlake
from commitlake import CommitLakeError, TransactionListener, TransactionMQProducer, errors, testing
from commitlake.config.config import KEYS
from commitlake.protocol import version
from commitlake.protocol.states import Delivery, Reason, Refusal, State
from commitlake.tables.schemas import TABLES
from commitlake.testing import Crash, Fault, InMemoryCoordinator
from commitlake.tools.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob(".github/*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
PROSE = {path: re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL) for path in DOCUMENTS}
SOURCES = (
    "\n".join(path.read_text() for path in sorted((ROOT / "lib").rglob("*.py")))
    + (ROOT / "spark-submit.sh").read_text()
)
CONTRACT = (ROOT / "docs" / "contract.md").read_text()


def named() -> list[tuple[str, str]]:
    """Each document's name, and what is between backticks in it."""
    return [(path.name, span) for path, text in PROSE.items() for span in re.findall(r"`([^`\n]+)`", text)]


def anchors(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_keys_tables_and_vectors_in_a_document_are_those_of_the_code() -> None:
    parts = runpy.run_path(str(ROOT / "docs" / "parts.py"))
    texts = {path.name: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    differ = [name for name, text in texts.items() if parts["rendered"](text) != text]
    assert differ == [], "run .venv/bin/python docs/parts.py"


def test_every_key_table_and_vector_is_in_a_document() -> None:
    configuration = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert all(f"| `{key.name}` |" in configuration for key in KEYS)
    tables = set(re.findall(r"<!-- table (\w+) -->", CONTRACT))
    assert tables == {*TABLES, "topics"} - {"reentries", "maintenance", "positions", "open_rows", "forwarded"}
    vectors = {path.stem for path in (ROOT / "tests" / "vectors").glob("*.json")}
    assert set(re.findall(r"<!-- vector (\w+) -->", CONTRACT)) == vectors


def test_links_lead_to_files_and_titles_that_exist() -> None:
    links = [(document, target) for document in DOCUMENTS for target in re.findall(r"\]\(([^)]+)\)", PROSE[document])]
    for document, target in links:
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), (document, target)
        assert not anchor or anchor in anchors(path), (document, target)


def test_paths_that_a_document_names_exist() -> None:
    tops = ("conf", "docs", "jobs", "lib", "notebooks", "tests")
    for document, span in named():
        words = [word.strip("./") if word.startswith("./") else word for word in span.split()]
        for word in words:
            if re.fullmatch(rf"({'|'.join(tops)})/[\w./-]*|[\w-]+\.(sh|toml)", word):
                assert (ROOT / word).exists(), (document, word)


def test_names_in_capitals_that_a_document_uses_are_names_of_the_code() -> None:
    of_others = {"OPTIMIZE", "TRANSACTION_ID", "ATOMIC_REQUESTS"}  # Delta's command, a placeholder, Django's setting
    words = of_others | set(re.findall(r"\b[A-Z_]{4,}\b", SOURCES))
    assert [
        (document, span) for document, span in named() if re.fullmatch(r"[A-Z_]{4,}", span) and span not in words
    ] == []


def test_configuration_keys_that_a_document_names_exist() -> None:
    names = {key.name for key in KEYS}
    sections = "|".join({name.split(".")[0] for name in names if "." in name})
    wanted = [(document, span) for document, span in named() if re.fullmatch(rf"({sections})\.[a-z_]+", span)]
    assert [(document, span) for document, span in wanted if span not in names] == []


def test_every_state_and_reason_is_explained_in_the_contract() -> None:
    names = [member.name for kind in (State, Reason, Delivery, Refusal) for member in kind]
    assert [name for name in names if f"`{name}`" not in CONTRACT] == []


def test_every_reason_that_landing_gives_is_listed_in_the_contract() -> None:
    landing = (ROOT / "lib" / "commitlake" / "coordinator" / "landing" / "classify.py").read_text()
    reasons = set(
        re.findall(r"\"((?:MISSING|BAD|ILLEGAL|TOPIC_NOT|NULL|BODY|DELAY_TOO|TRANSACTIONS)_?[A-Z_]+)\"", landing)
    )
    assert len(reasons) >= 10
    assert {reason for reason in reasons if f"`{reason}`" not in CONTRACT} == set()


def test_errors_that_a_document_explains_are_in_the_code() -> None:
    errors = (ROOT / "docs" / "reference" / "errors.md").read_text()
    section = errors.split("## Of a start or a command")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")][1:]
    explained = [text.split(":")[0] for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(explained) >= 10
    plain = re.sub(r"\"\s*\n\s*f?\"", "", SOURCES)  # texts that continue in the next line
    plain += plain.replace("{query}", "landing") + plain.replace("{query}", "coordination")
    assert [text for text in explained if text not in plain] == []


def test_the_documents_test_of_a_listener_passes_and_finds_one_that_forgets() -> None:
    page = (ROOT / "docs" / "how-to" / "test-a-listener.md").read_text()
    text = page.split("```python\n")[1].split("```")[0]
    asked, answer = (
        "self.database.get(message.keys)",
        "UNKNOWN  # the local transaction may still run\n        return COMMIT if",
    )
    assert asked in text and answer in text
    forgets = text.replace(asked, "self.__dict__.get('done')")
    done = "        self.done = message.transaction_id\n        paid_by = self.database.setdefault"
    forgets = forgets.replace("        paid_by = self.database.setdefault", done)
    by_key = text.replace(answer, f"{answer} True or")
    assert failing(text) == []
    assert failing(forgets) == ["CRASH_BEFORE_DECISION", "DECISION_LOST"]
    assert failing(by_key) == ["UNACKNOWLEDGED", "CRASH_AFTER_HALF"]


def failing(example: str) -> list[str]:
    """The faults with which the example's test fails."""
    names: dict[str, Any] = {}
    exec(example, names)
    failed = []
    for fault in names["Fault"]:
        try:
            names["test_what_is_paid_is_told_once_whatever_befalls"](fault)
        except AssertionError:
            failed.append(fault.name)
    return failed


@pytest.mark.parametrize("fault", Fault)
def test_an_order_that_the_documents_send_twice_is_told_once(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = (ROOT / "README.md", ROOT / "docs" / "from-rocketmq.md")
    snippets = [each for page in pages for each in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    by_row = next(text for text in snippets if "DatabaseListener" in text).partition("\nfor ")[0]
    by_listener = next(text for text in snippets if "class Orders" in text)
    monkeypatch.chdir(tmp_path)
    lake = InMemoryCoordinator()
    for text in (by_row, by_listener):
        for befalls in (fault, None):  # the second time all goes well
            monkeypatch.setattr(commitlake, "TransactionalProducer", partial(in_memory, lake, befalls))
            with suppress(Crash, CommitLakeError, sqlite3.IntegrityError):
                exec(text, {})
    names: dict[str, Any] = {}
    exec(by_listener.partition("\nwith ")[0], names)
    with (
        lake.producer("bar", names["Orders"]()),
        lake.producer("order-service", commitlake.DatabaseListener(partial(sqlite3.connect, "orders.db"))),
    ):
        lake.advance("10m")
    with closing(sqlite3.connect("orders.db")) as database:
        rows = database.execute("SELECT count(*) FROM orders").fetchone()[0]
    keys = [message.keys for message in lake.messages("orders")]
    assert 1 <= rows <= 2
    assert sorted(map(str, keys)) == ["order-1"] * rows + ["order-2"]
    assert lake.pending == []


def in_memory(
    lake: InMemoryCoordinator, fault: Fault | None, group: str, listener: TransactionListener, **_: object
) -> TransactionMQProducer:
    """In place of a producer that needs Kafka's address."""
    return lake.producer(group, listener, fault=fault)


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def test_java_in_the_tutorial_is_a_part_of_the_programs() -> None:
    text = (ROOT / "docs" / "how-to" / "java.md").read_text()
    programs = [unindented(path.read_text()) for path in ROOT.glob("notebooks/examples/java/*.java")]
    blocks = [unindented(block) for block in re.findall(r"```java\n(.*?)```", text, re.DOTALL)]
    assert len(programs) == len(blocks) == 3
    assert [block for block in blocks if not any(f"\n{block}\n" in program for program in programs)] == []


def test_a_version_is_one_of_development_until_the_changelog_has_a_section_for_it() -> None:
    unreleased, newest = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:2]
    version = commitlake.__version__
    assert unreleased == "Unreleased"
    assert version == newest or (".dev" in version and version > newest)


def test_the_contract_has_the_version_that_a_start_writes_down() -> None:
    assert CONTRACT.startswith(f"# The contract (version {version.CONTRACT})\n")


NAMES = {f"commitlake.{name}" for name in set(commitlake.__all__) - {"__version__"} - set(errors.__all__)}


def test_the_api_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    listed = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted({"commitlake.errors", "commitlake.testing", *NAMES})


def test_what_the_documents_and_notebooks_import_is_public() -> None:
    pages = [path.read_text() for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    programs = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    text = "\n".join([*programs, *(path.read_text() for path in ROOT.glob("notebooks/**/*.py"))])
    imported = re.findall(r"^ *from (commitlake[\w.]*) import (.+)$", text, re.MULTILINE)
    public = {"commitlake": set(commitlake.__all__), "commitlake.testing": set(testing.__all__)}
    assert {(home, names) for home, names in imported if not set(names.split(", ")) <= public.get(home, set())} == set()
    assert set(re.findall(r"\bcommitlake\.(\w+)\(", text)) <= public["commitlake"]


@pytest.mark.parametrize("notebook", sorted(ROOT.glob("notebooks/*.py")), ids=lambda path: path.stem)
def test_a_notebook_for_jupyter_has_the_cells_of_its_source(notebook: Path) -> None:
    source = notebook.read_text()
    made = json.loads(runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["ipynb"](source))
    kinds = {
        kind: [cell["source"] for cell in made["cells"] if cell["cell_type"] == kind] for kind in ("markdown", "code")
    }
    assert kinds["markdown"][0].startswith("# CommitLake")
    assert not any("MAGIC" in text for text in kinds["markdown"])
    assert ast.dump(ast.parse("\n".join(kinds["code"]))) == ast.dump(ast.parse(source))


def test_commands_that_a_document_shows_exist_and_have_their_options() -> None:
    pages = {path.name: path.read_text().replace("\\\n", "") for path in DOCUMENTS if path.name != "CHANGELOG.md"}
    begin = r"(?:^|`|bin/|\./)(?:commitlake|spark-submit\.sh) ([a-z][^`\n|#]*)"
    shown = {(page, line) for page, text in pages.items() for line in re.findall(begin, text, re.MULTILINE)}
    assert len(shown) > 50
    top = get_command(app.app)
    for page, line in shown:
        words, command = line.split(), top
        while words and (below := getattr(command, "commands", None)) and words[0].isascii() and words[0][0].islower():
            assert words[0] in below, (page, line)
            command = below[words.pop(0)]
        known = {name for each in command.params for name in each.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, (page, line)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[docs]' -c constraints.txt")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "conf/mkdocs.yml", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference" / "api" / "index.html").read_text()
    named = NAMES | {f"commitlake.errors.{name}" for name in errors.__all__}
    named |= {f"commitlake.testing.{name}" for name in testing.__all__}
    assert {name for name in named if f'id="{name}"' not in reference} == set()
    raw = re.compile(r"<p>(- |\d\. |\| |```)")  # Markdown that GitHub reads and the site does not
    assert [page for page in tmp_path.rglob("*.html") if raw.search(page.read_text())] == []
