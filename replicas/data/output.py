"""Folders that appear whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(out: str | Path) -> Iterator[Path]:
    """A fresh folder beside `out` to write into; it takes the place of `out` once the block has ended well.

    After an error or a kill `out` is what it was; what a kill leaves behind the next run removes.
    """
    out = Path(out)
    beside = out.with_name(f".{out.name}.part")
    replaced = out.with_name(f".{out.name}.old")
    if replaced.exists() and not out.exists():  # killed between the two renames below
        os.replace(replaced, out)
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        shutil.rmtree(replaced, ignore_errors=True)
        if out.exists():
            os.replace(out, replaced)
        os.replace(beside, out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
