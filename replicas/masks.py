"""Glob masks over parameter names: every parameter belongs to exactly one group."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from experiments.configuration import InputError


def assign(names: Iterable[str], masks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The group of each name in `names`; `masks` maps a group to its glob patterns (`*` also matches dots).

    Raises:
        InputError: a name matches no mask, or more than one, within a group or across groups.
    """
    groups = {}
    for name in names:
        matching = [
            (group, mask) for group, patterns in masks.items() for mask in patterns if fnmatchcase(name, mask)
        ]
        if len(matching) != 1:
            found = ", ".join(f"`{mask}` ({group})" for group, mask in matching) or "none"
            raise InputError(f"parameter `{name}` must match exactly one mask; matching: {found}")
        groups[name] = matching[0][0]
    return groups


def matches(name: str, masks: Sequence[str]) -> bool:
    """Whether any of `masks` matches `name`."""
    return any(fnmatchcase(name, mask) for mask in masks)
