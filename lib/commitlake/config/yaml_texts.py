"""YAML whose plain values stay texts: in YAML 1.1 `010` is 8, `1:30` is 90 and `on` is true."""

from __future__ import annotations

from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"


class _Texts(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - of PyYAML
        letter: [(tag, pattern) for tag, pattern in found if tag in (_MERGE, _NULL)]
        for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Checks the keys of a map as it is written, before the keys of others are merged into it."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            _check(key, lines)
            lines[key.value] = key.start_mark.line + 1
        return node


def _check(key: yaml.Node, lines: dict[str, int]) -> None:
    is_plain = isinstance(key, yaml.ScalarNode) and key.style is None and key.tag != _MERGE
    if not isinstance(key, yaml.ScalarNode) or (is_plain and str(yaml.safe_load(key.value)) != key.value):
        problem = f"the key {key.value if is_plain else '?'} is no text to YAML; write it in quotes"
    elif key.value in lines:
        problem = f"the key {key.value} is there already, at line {lines[key.value]}; put what is below both under one"
    else:
        return
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)


def key_problem(error: yaml.YAMLError) -> str | None:
    """The problem of a key; None where the text is not YAML, since PyYAML's message may then show a password."""
    return error.problem if type(error) is yaml.MarkedYAMLError else None


def load(text: str) -> Any:
    """Read YAML: maps, lists, texts and nulls.

    Raises:
        yaml.YAMLError: it is not YAML, or a key is there twice or is no text (`key_problem`).
    """
    return yaml.load(text, _Texts)
