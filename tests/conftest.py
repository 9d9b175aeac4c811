"""Settings for all tests: no telemetry, no example of a property test fails for being slow."""

from hypothesis import settings

from experiments.telemetry import telemetry_off

telemetry_off()
settings.register_profile("maquette", deadline=None)
settings.load_profile("maquette")
