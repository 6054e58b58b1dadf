"""Converts other limiters' configurations to rules files."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from headgate.cli.envoy_ratelimit import rules_of
from headgate.errors import InvalidRule, Problem
from headgate.rules.facts import ENVOY, WELL_KNOWN
from headgate.rules.sources.document import snapshot_of
from headgate.rules.sources.export import text_of


def import_envoy(contents: Mapping[str, bytes]) -> tuple[str, list[str]]:
    """Convert envoyproxy/ratelimit's files, by name, to a rules file. Also return what has no equivalent. Raises
    `InvalidRule`."""
    documents = []
    for file, content in contents.items():
        try:
            # Keep every scalar as text: a value of 007 or yes is meant literally.
            documents += [one for one in yaml.load_all(content, yaml.BaseLoader) if one is not None]
        except yaml.YAMLError as error:
            raise InvalidRule(Problem("", "", f"is not YAML: {' '.join(str(error).split())}", file)) from None
    rules, report = rules_of(documents)
    named = {fact for rule in rules for fact in (*rule["dimension"].split("+"), *rule["match"])}
    declared = sorted(named - {*WELL_KNOWN, *ENVOY})
    return text_of(snapshot_of({"headgate": {"facts": declared}, "rules": rules}, version="")), report
