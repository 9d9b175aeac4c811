"""Resume checkpoints: written beside and renamed, checked by content hash, the last two kept.

They live in a folder that DVC does not track, named by the run's fingerprint, so that a training stage stays
cacheable and yet resumes after a kill at any moment.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Trainer

_KEPT = 2


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder` whose content hash is right; a damaged one is reported and passed over."""
    paths = sorted(folder.glob("step-*.ckpt"), reverse=True)
    for path in paths:
        stated = path.with_suffix(".sha256")
        if stated.exists() and stated.read_text().strip() == _sha256(path):
            return path
        print(f"{path}: damaged or half-written checkpoint, passed over", file=sys.stderr)
    if paths:
        print(f"{folder}: no intact checkpoint, training starts from step 0", file=sys.stderr)
    return None


def finished_steps(checkpoint: Path) -> int:
    """Steps done when `checkpoint` was written, from its name."""
    return int(checkpoint.stem.removeprefix("step-"))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class TrainingInterrupted(Exception):  # noqa: N818 - no error: everything is saved
    """Training stopped on request after saving; `signal_number` says by what."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number


class ResumeCheckpoints:
    """Saves every so many seconds and on SIGINT or SIGTERM, always between two steps.

    Entered as a context, it takes the two signals over; called with the trainer after each step, it saves when it
    is time, or saves and raises `TrainingInterrupted` when a signal came.
    """

    def __init__(self, folder: Path, every_seconds: float) -> None:
        self.folder, self.every_seconds = folder, every_seconds
        self._saved_at = time.monotonic()
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "ResumeCheckpoints":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._request_stop)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def __call__(self, trainer: Trainer) -> None:
        if self._signal is not None:
            self.save(trainer)
            raise TrainingInterrupted(self._signal)
        if time.monotonic() - self._saved_at >= self.every_seconds:
            self.save(trainer)
            self._saved_at = time.monotonic()

    def save(self, trainer: Trainer) -> None:
        """Write `step-<n>.ckpt`, n the number of finished steps, after its hash, then drop the oldest."""
        path = self.folder / f"step-{trainer.global_step:08d}.ckpt"
        beside = path.with_suffix(".part")
        trainer.save_checkpoint(beside)
        if trainer.is_global_zero:
            path.with_suffix(".sha256").write_text(_sha256(beside) + "\n")
            os.replace(beside, path)
            for old in sorted(self.folder.glob("step-*.ckpt"))[:-_KEPT]:
                old.unlink()
                old.with_suffix(".sha256").unlink(missing_ok=True)
