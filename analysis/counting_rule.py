"""Whether two runs count parameters by the same rule, however the rule is worded."""

import re

from logs.catalogue import load_catalogue

REFERENCE = re.compile(r"^that of ([\w.-]+)(?:;|$)")

COUNTED = re.compile(r"\bactive (?:counts|includes|with) (?:the )?([\w ,-]+)")
LEFT_OUT = re.compile(r"\bactive (?:leaves out|excludes|without) (?:the )?([\w ,-]+)")


def resolved(rule: str) -> str:
    """The rule itself where `rule` only says `that of RUN` for a run of the catalogue that states one."""
    named = REFERENCE.match(rule.strip())
    if named is None or named.group(1) not in load_catalogue():
        return rule
    return load_catalogue()[named.group(1)].run_facts.counting_rule or rule


def embeddings_are_active(rule: str) -> bool | None:
    """Whether active parameters hold the embeddings, or None where the rule does not say."""
    if any("embedding" in part for part in LEFT_OUT.findall(rule)):
        return False
    if any("embedding" in part for part in COUNTED.findall(rule)):
        return True
    return None


def same_rule(left: str, right: str) -> bool | None:
    """True where both name or word the same rule, False where one counts embeddings and the other does not, else
    None: other words may or may not mean another rule."""
    left, right = resolved(left), resolved(right)
    if _plain(left) == _plain(right):
        return True
    counted = embeddings_are_active(left), embeddings_are_active(right)
    if None not in counted and counted[0] != counted[1]:
        return False
    return None


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.casefold()))
