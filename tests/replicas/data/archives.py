"""Archives made for the tests."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from replicas.data.sources import Source


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in files.items():
            bundle.writestr(name, data)
    return path


def real_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A wheel that pip takes."""
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: <3\n"
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    extra = {f"{about}/METADATA": metadata.encode(), f"{about}/WHEEL": tags.encode(), f"{about}/RECORD": b""}
    return wheel(folder / f"{name}-{version}-py3-none-any.whl", files | extra)


def tarball(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as bundle:
        for entry, data in entries:
            entry.size = len(data)
            bundle.addfile(entry, io.BytesIO(data))
    return path


def source_for(archive: Path, **changes: object) -> Source:
    """A source that is pinned to `archive`."""
    fields: dict[str, object] = {
        "client": "pip" if archive.suffix == ".whl" else "npm",
        "package": archive.name.split("-")[0],
        "version": archive.name.split("-")[1].removesuffix(".tgz"),
        "file": archive.name,
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "licence": "MIT",
        "include": ["*"],
    }
    return Source.model_validate(fields | changes)
