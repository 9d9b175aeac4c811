"""Resume checkpoints: written beside and renamed, checked by content hash, the last two kept.

They live in a folder that DVC does not track, named by the run's fingerprint, so that a training stage stays
cacheable and yet resumes after a kill at any moment. A checkpoint is one file, or with FSDP a folder into which
every rank writes its shards; all nodes must see the same folder.
"""

import hashlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from replicas import ranks

_KEPT = 2
_SAVE = 1  # a wish to save; that to stop is the number of a signal, which is greater


def newest_checkpoint(folder: Path, tell: bool = True) -> Path | None:
    """The newest checkpoint in `folder` whose content hash is right.

    A damaged one is passed over; the user is told, by the rank that is to `tell`.
    """
    paths = sorted(folder.glob("step-*.ckpt"), reverse=True)
    for path in paths:
        if is_intact(path):
            return path
        if tell:
            print(f"{path}: damaged or half-written checkpoint, passed over", file=sys.stderr)
    if paths and tell:
        print(f"{folder}: no intact checkpoint, training starts from step 0", file=sys.stderr)
    return None


def is_intact(checkpoint: Path) -> bool:
    """Whether the content of `checkpoint` has the hash that was written beside it before."""
    stated = checkpoint.with_suffix(".sha256")
    return stated.exists() and stated.read_text().strip() == _sha256(checkpoint)


def finished_steps(checkpoint: Path) -> int:
    """Steps done when `checkpoint` was written, from its name."""
    return int(checkpoint.stem.removeprefix("step-"))


def single_file(checkpoint: Path, beside: Path) -> Path:
    """`checkpoint` as one file, for a run that is not sharded: itself, or its shards put together in `beside`."""
    if checkpoint.is_file():
        return checkpoint
    dcp_to_torch_save(checkpoint, beside)
    shards = torch.load(beside, weights_only=False)
    rest = torch.load(checkpoint / "meta.pt", weights_only=False)
    optimizer = _numbered(shards["optimizer_0"])
    torch.save(rest | {"state_dict": shards["state_dict"], "optimizer_states": [optimizer]}, beside)
    return beside


def shardable(checkpoint: Path, beside: Path) -> Path:
    """`checkpoint` as FSDP loads it: itself if a folder, else copied to `beside` with its optimizer state by name."""
    if checkpoint.is_dir():
        return checkpoint
    whole = torch.load(checkpoint, weights_only=False)
    whole["optimizer_states"] = [_named(state) for state in whole["optimizer_states"]]
    torch.save(whole, beside)
    return beside


def _named(optimizer_state: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer by the name of each parameter in `Replica`, instead of by its number."""
    groups = optimizer_state["param_groups"]
    name = {
        number: f"model.{name}"
        for group in groups
        for number, name in zip(group["params"], group["param_names"], strict=True)
    }
    return {
        "state": {name[number]: state for number, state in optimizer_state["state"].items()},
        "param_groups": [group | {"params": [name[n] for n in group["params"]]} for group in groups],
    }


def _numbered(optimizer_state: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer by the number of each parameter, as PyTorch keeps it, instead of by its name."""
    groups = optimizer_state["param_groups"]
    names = [name for group in groups for name in group["params"]]
    number = {name: i for i, name in enumerate(names)}
    return {
        "state": {number[name]: state for name, state in optimizer_state["state"].items()},
        "param_groups": [group | {"params": [number[n] for n in group["params"]]} for group in groups],
    }


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    """Hash of a file, or of the names and hashes of all files in a folder."""
    if path.is_dir():
        files = "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted(path.iterdir()))
        return hashlib.sha256(files.encode()).hexdigest()
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class TrainingInterrupted(Exception):  # noqa: N818 - no error: everything is saved
    """Training stopped on request after saving; `signal_number` says by what."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number


class ResumeCheckpoints:
    """Saves every so many seconds and on SIGINT or SIGTERM, always between two steps, the same for all ranks.

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
        due = time.monotonic() - self._saved_at >= self.every_seconds
        wish = ranks.greatest_on_host(self._signal or (_SAVE if due else 0))
        if wish:
            self.save(trainer)
            self._saved_at = time.monotonic()
        if wish > _SAVE:
            raise TrainingInterrupted(wish)

    def save(self, trainer: Trainer) -> None:
        """Write `step-<n>.ckpt`, n the number of finished steps, after its hash, then drop the oldest."""
        path = self.folder / f"step-{trainer.global_step:08d}.ckpt"
        beside = path.with_suffix(".part")
        if trainer.is_global_zero:
            _remove(beside)
        ranks.barrier()
        trainer.save_checkpoint(beside)
        if trainer.is_global_zero:
            path.with_suffix(".sha256").write_text(_sha256(beside) + "\n")
            if path.is_dir() or beside.is_dir():
                _remove(path)
            os.replace(beside, path)
            for old in sorted(self.folder.glob("step-*.ckpt"))[:-_KEPT]:
                old.with_suffix(".sha256").unlink(missing_ok=True)
                _remove(old)
