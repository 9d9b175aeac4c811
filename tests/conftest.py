"""Settings for all tests: no telemetry, no example of a property test fails for being slow, longest tests first."""

import os
import sys
from collections.abc import Iterator

import pytest
import setuptools  # noqa: F401 - before the standard library's distutils, which it refuses to come after; inductor needs it
from hypothesis import settings

from experiments.telemetry import telemetry_off

MINUTES = ("pipeline", "distributed")
"""Marks of tests that take minutes."""

telemetry_off()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the cores are taken by processes that test side by side
settings.register_profile("maquette", deadline=None)
settings.load_profile("maquette")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes come first, so that no process is left with one of them at the end."""
    long = {item.path for item in items if set(MINUTES) & {mark.name for mark in item.iter_markers()}}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="module", autouse=True)
def no_wandb_service_for_the_next_module() -> Iterator[None]:
    """End W&B's service after each module: every process started later would share it, and lose it, too."""
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
