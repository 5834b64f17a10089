"""tests/rules.md names a test for the rules of each section of the contract, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
RULES = (TESTS / "rules.md").read_text()
CONTRACT = (TESTS.parent / "docs" / "contract.md").read_text()


def test_each_test_that_shows_a_rule_exists() -> None:
    named = re.findall(r"`(\w+/\w+\.py)(?:::(\w+))?`", RULES)
    assert len(named) > 100
    missing = [(file, name) for file, name in named if f"def {name}" not in (TESTS / file).read_text()]
    assert missing == []


def test_each_section_of_rules_has_its_tests() -> None:
    titles = re.findall(r"^### (4\.\d+ .+)$", CONTRACT, re.MULTILINE)
    assert re.findall(r"^## (4\.\d+ .+)$", RULES, re.MULTILINE) == titles
    sections = re.findall(r"^### (2\.\d+) ", CONTRACT, re.MULTILINE)
    assert sorted({number for number in re.findall(r"^\| (2\.\d+) ", RULES, re.MULTILINE)}) == sections
