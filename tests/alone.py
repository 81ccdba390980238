"""Environments that hold rolellm's wheel and what it declares, and nothing else: what a user's `pip install` makes."""

import importlib.metadata
import os
import subprocess
import sys
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_environment(folder: Path, root: Path, extras: tuple[str, ...] = ()) -> Path:
    """Make a virtual environment with the wheel, built from the clone, and its requirements as installed here.

    Returns:
        Its interpreter.
    """
    wheels = folder / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    venv.create(folder / "venv", with_pip=False)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    for name in find_requirements("rolellm", extras) - {"rolellm"}:
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            source, target = Path(str(distribution.locate_file(file))), site / file
            if ".." not in file.parts and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
    wheel = next(wheels.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], check=True)
    return folder / "venv" / "bin" / "python"


def find_requirements(name: str, extras: tuple[str, ...] = ()) -> set[str]:
    """Find the distributions that installing one with these extras brings, itself included."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(canonicalize_name(name), tuple(extras))]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        for text in importlib.metadata.distribution(current[0]).requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *current[1])):
                waiting.append((canonicalize_name(requirement.name), tuple(sorted(requirement.extras))))
    return {distribution for distribution, _ in found}


def run_alone(
    python: Path, *arguments: str, env: dict[str, str], cwd: str | Path = os.sep, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run such an interpreter, with nothing of Python's in its environment variables."""
    clean = {key: value for key, value in env.items() if not key.startswith("PYTHON")}
    settings: dict[str, object] = {"timeout": 120, "capture_output": True, "text": True, **options}
    return subprocess.run([str(python), *arguments], env=clean, cwd=cwd, **settings)  # type: ignore[call-overload,no-any-return]
