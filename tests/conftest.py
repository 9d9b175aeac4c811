"""Settings for all tests: no telemetry, no example of a property test fails for being slow."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from experiments.telemetry import telemetry_off

telemetry_off()
settings.register_profile("maquette", deadline=None)
settings.load_profile("maquette")


@pytest.fixture(scope="module", autouse=True)
def no_wandb_service_for_the_next_module() -> Iterator[None]:
    """End W&B's service after each module: every process started later would share it, and lose it, too."""
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
