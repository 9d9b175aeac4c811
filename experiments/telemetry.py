"""The one place that keeps the tools under Maquette from phoning home unless the user said otherwise.

A leaf of the project: every package may import it, it imports none of them.
"""

import os

TELEMETRY_OFF = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "DVC_STUDIO_OFFLINE": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ITERATIVE_DO_NOT_TRACK": "1",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
}
"""Environment variables and the values that mean silence, for DVC, W&B and the Hugging Face libraries."""


def telemetry_off() -> None:
    """Set every variable of `TELEMETRY_OFF` that the user left open, for this process and its children."""
    for name, value in TELEMETRY_OFF.items():
        os.environ.setdefault(name, value)
