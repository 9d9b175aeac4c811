"""The import directions that keep the parts separable, read from the source and from a running program."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("analysis", "experiments", "logs", "replicas")
LEAVES = ("configuration", "orphans", "progress", "telemetry")

ALLOWED = {
    "logs": {"logs", "experiments.configuration", "experiments.progress"},
    "analysis": {"analysis", "logs", "experiments.configuration", "experiments.progress"},
    "replicas": {
        "replicas",
        "logs.schema",
        "experiments.configuration",
        "experiments.progress",
        "experiments.telemetry",
    },
}
"""Which of our own modules each package may import; a package stands for all that is in it."""

HEAVY = (
    "torch",
    "lightning",
    "pandas",
    "pyarrow",
    "wandb",
    "dvc",
    "plotly",
    "matplotlib",
    "scipy",
    "tokenizers",
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Full names of all modules and members that `path` imports, anywhere in it."""
    names = set()
    package = (
        module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    )
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def ours(name: str) -> bool:
    return within(name, {*PACKAGES, "maquette"})


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no source in {package}"
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_lies_before_it(package: str) -> None:
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in sources(package)
        for name in imports(path)
        if ours(name) and not within(name, ALLOWED[package])
    ]
    assert not wrong, "\n".join(wrong)


def test_analysis_works_without_torch() -> None:
    wrong = [
        f"{module_name(path)} imports {name}"
        for package in ("analysis", "logs")
        for path in sources(package)
        for name in imports(path)
        if within(name, {"torch", "lightning"})
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_imports_nothing_of_ours(leaf: str) -> None:
    assert not [name for name in imports(ROOT / "experiments" / f"{leaf}.py") if ours(name)]


def test_no_package_imports_the_tests() -> None:
    wrong = [
        path
        for package in PACKAGES
        for path in sources(package)
        for name in imports(path)
        if within(name, {"tests"})
    ]
    assert not wrong


def test_the_command_line_answers_without_loading_anything_heavy() -> None:
    code = (
        "import sys, maquette\n"
        "try:\n"
        "    maquette.command_line()(['--help'])\n"
        "finally:\n"
        "    print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(run.stderr.split()) & set(HEAVY)
    assert not loaded, f"`maquette --help` imports {', '.join(sorted(loaded))}"
    assert "doctor" in run.stdout
    assert "repro" in run.stdout


def test_reading_a_log_loads_no_torch() -> None:
    code = "import sys, logs.schema\nassert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
