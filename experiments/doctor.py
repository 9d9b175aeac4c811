"""`maquette doctor`: what of Maquette this machine can run, found out before anything long starts.

Nothing here uses the network. A `problem` keeps the laptop profile from running, a `warning` does not.
"""

import json
import netrc
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psutil

from experiments.configuration import InputError, read_yaml
from experiments.stages import usable_cores

State = Literal["ok", "warning", "problem"]

GIB = 2**30
MEMORY_LEAST, MEMORY_EASY = 3 * GIB, 7 * GIB
DISK_LEAST, DISK_EASY = 2 * GIB, 8 * GIB

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_MAC_BROWSER = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Check:
    """One line of the examination: what was looked at, how it stands, what was found, what to do about it."""

    name: str
    state: State
    found: str
    remedy: str = ""


def examine(folder: Path) -> list[Check]:
    """Examine this machine for the study that `folder` is in."""
    study = next((above for above in (folder, *folder.parents) if (above / "params.yaml").is_file()), folder)
    checks: list[Callable[[Path], Check]] = [
        check_cpu,
        check_memory,
        check_disk,
        check_python,
        check_packages,
        check_torch,
        check_profile,
        check_git,
        check_dvc,
        check_pip,
        check_npm,
        check_wandb,
        check_browser,
    ]
    return [check(study) for check in checks]


def print_checks(checks: list[Check], as_json: bool) -> None:
    """Print `checks` as a table with remedies, or as one JSON document."""
    ready = all(check.state != "problem" for check in checks)
    if as_json:
        print(json.dumps({"ok": ready, "checks": [asdict(check) for check in checks]}, indent=2))
        return
    for check in checks:
        print(f"{check.state:<8} {check.name:<9} {check.found}")
        if check.remedy:
            print(f"{'':<18} -> {check.remedy}")
    print("ready for the laptop profile" if ready else "not ready: see the problems above")


def check_cpu(_folder: Path) -> Check:
    """Cores that this process may use."""
    cores = usable_cores()
    found = f"{cores} core{'s' if cores > 1 else ''}, {platform.machine()}, {platform.system()}"
    if cores == 1:
        return Check("cpu", "warning", found, "works, but training stages run one by one: twice the time")
    return Check("cpu", "ok", found)


def check_memory(_folder: Path) -> Check:
    """Memory of the machine, or of the container if that is less."""
    total = psutil.virtual_memory().total
    limit = _CGROUP_MEMORY.read_text().strip() if _CGROUP_MEMORY.is_file() else "max"
    if limit.isdigit():
        total = min(total, int(limit))
    return _enough("memory", total, MEMORY_LEAST, MEMORY_EASY, "close other programs, or use `--jobs 1`")


def check_disk(folder: Path) -> Check:
    """Free space where the study lies."""
    free = shutil.disk_usage(folder).free
    return _enough("disk", free, DISK_LEAST, DISK_EASY, f"free some space on the disk that holds {folder}")


def _enough(name: str, size: int, least: int, easy: int, remedy: str) -> Check:
    found = f"{size / GIB:.1f} GiB"
    if size < least:
        return Check(name, "problem", found, f"at least {least / GIB:.0f} GiB are needed: {remedy}")
    if size < easy:
        return Check(name, "warning", found, f"{easy / GIB:.0f} GiB are comfortable: {remedy}")
    return Check(name, "ok", found)


def check_python(_folder: Path) -> Check:
    """The Python that runs this."""
    return Check("python", "ok", f"{platform.python_version()} in {sys.prefix}")


def check_packages(_folder: Path) -> Check:
    """Every dependency that pyproject.toml names, in a version that it allows."""
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in requires("maquette-lm") or []]
    except PackageNotFoundError:
        return Check("packages", "problem", "maquette-lm itself is not installed", "`make setup`")
    needed = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = [fault for one in needed if (fault := _fault(one.name, one.specifier.contains))]
    if wrong:
        return Check("packages", "problem", "; ".join(wrong), "`make setup`")
    return Check("packages", "ok", f"all {len(needed)} dependencies in allowed versions")


def _fault(name: str, allowed: Callable[[str], bool]) -> str:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return f"{name} is missing"
    return "" if allowed(installed) else f"{name} {installed} is not an allowed version"


def check_torch(_folder: Path) -> Check:
    """The PyTorch build and the accelerators it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        return Check("torch", "problem", f"does not import: {error}", "`make setup`")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if names:
        return Check("torch", "ok", f"{torch.__version__}, {len(names)} x {names[0]}")
    if torch.backends.mps.is_available():
        return Check("torch", "ok", f"{torch.__version__}, Apple GPU")
    if shutil.which("nvidia-smi"):
        found = f"{torch.__version__} sees no GPU, though this machine has the NVIDIA driver"
        return Check("torch", "warning", found, "`make setup TORCH=cuda` installs the CUDA build")
    return Check("torch", "ok", f"{torch.__version__}, no GPU: the laptop and smoke profiles need none")


def check_profile(folder: Path) -> Check:
    """Whether the profile chosen in params.yaml suits the machine."""
    try:
        profile = read_yaml(folder / "params.yaml").get("profile")
    except InputError as error:
        return Check("profile", "problem", str(error), "run this inside a Maquette checkout")
    if profile in ("gpu", "cluster") and not _has_cuda():
        return Check("profile", "problem", f"{profile}, but no CUDA GPU", "`maquette repro --profile laptop`")
    return Check("profile", "ok", str(profile))


def _has_cuda() -> bool:
    if not find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available()


def check_git(folder: Path) -> Check:
    """Git, and whether `folder` is inside a repository, which DVC asks for."""
    if not shutil.which("git"):
        return Check("git", "problem", "not installed", "install git with the system's package manager")
    inside = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--show-toplevel"],
        capture_output=True,
        text=True,
        check=False,
    )
    if inside.returncode:
        reason = inside.stderr.strip().splitlines()
        return Check("git", "problem", reason[0] if reason else "no repository", "clone the project with git")
    return Check("git", "ok", f"repository {inside.stdout.strip()}")


def check_dvc(folder: Path) -> Check:
    """DVC and its folder."""
    if not find_spec("dvc"):
        return Check("dvc", "problem", "not installed", "`make setup`")
    if not any((candidate / ".dvc").is_dir() for candidate in (folder, *folder.parents)):
        return Check("dvc", "problem", "no .dvc folder here or above", "run this inside a Maquette checkout")
    return Check("dvc", "ok", version("dvc"))


def check_pip(_folder: Path) -> Check:
    """Pip, which fetches the corpus packages."""
    if not find_spec("pip"):
        return Check("pip", "problem", "not in this environment", "`python -m ensurepip` puts it there")
    return Check("pip", "ok", version("pip"))


def check_npm(folder: Path) -> Check:
    """Npm, if any corpus source comes through it."""
    sources = folder / "experiments" / "sources.yaml"
    needed = sources.is_file() and "client: npm" in sources.read_text(encoding="utf-8")
    if not needed:
        return Check("npm", "ok", "not needed: no corpus source comes through it")
    if not shutil.which("npm"):
        return Check("npm", "problem", f"not installed, but {sources} names npm packages", "install Node.js")
    return Check("npm", "ok", "installed")


def check_wandb(_folder: Path) -> Check:
    """How runs are logged to W&B; looks for a login without asking the server."""
    mode = os.environ.get("WANDB_MODE", "offline")
    logged_in = bool(os.environ.get("WANDB_API_KEY")) or _netrc_names_wandb()
    login = "logged in" if logged_in else "not logged in"
    if mode == "online" and not logged_in:
        return Check("wandb", "warning", "online, but not logged in", "`wandb login`, or unset WANDB_MODE")
    return Check("wandb", "ok", f"{mode}, {login}")


def _netrc_names_wandb() -> bool:
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any("wandb" in host for host in hosts)


def check_browser(_folder: Path) -> Check:
    """Chromium, in which a test opens the report."""
    found = find_browser()
    if not found:
        return Check(
            "browser", "warning", "no Chromium", "optional: only the test that opens the report needs it"
        )
    return Check("browser", "ok", found)


def find_browser() -> str | None:
    """Path of a Chromium-like browser, or None."""
    on_path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    return on_path or (str(_MAC_BROWSER) if _MAC_BROWSER.is_file() else None)
