"""What benchmarks share: their command line, the versions and hardware they ran on, and a result as table or JSON."""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def make_parser(description: str | None, *, reads_release: bool = False) -> argparse.ArgumentParser:
    """A command line with ``--json`` and, for one that reads the release, ``--data-dir``.

    Args:
        description: The benchmark's docstring.
        reads_release: Take a copy of the release; ``None`` stands for the sample.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    if reads_release:
        text = "a local copy of the release (default: $ROLEBENCH_DIR, else the sample)"
        parser.add_argument("--data-dir", type=Path, default=os.environ.get("ROLEBENCH_DIR") or None, help=text)
    return parser


def existing(path: str) -> Path:
    """Read an option that names a file or folder, and refuse one that is not there."""
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path} does not exist")
    return Path(path)


def compare_gradients(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """How far gradients by name are from others: the norm of the difference over the norm."""
    import torch

    difference = torch.stack([(ours[name] - theirs[name]).norm() for name in theirs]).norm()
    return float(difference / torch.stack([gradient.norm() for gradient in theirs.values()]).norm())


def environment(*packages: str) -> dict[str, Any]:
    """The `versions` and `hardware` entries of a result.

    Args:
        packages: Distributions whose versions matter, besides Python and this library.
    """
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in ("rolellm", *packages)}
    return {
        "versions": versions,
        "hardware": {"cpu": _processor(), "cores": os.cpu_count(), "system": platform.system()},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def need_gpu(shapes: Sequence[str]) -> None:
    """End in words where torch sees no GPU, and a shape needs one."""
    import torch

    if not torch.cuda.is_available() and set(shapes) != {"tiny"}:
        sys.exit("--gpu needs a CUDA device, and torch sees none here; without --gpu it measures on the CPU")


def peak_memory_mb() -> float:
    """Highest resident size of this process, in MB (1e6 bytes)."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: on Linux that starts from what the parent had when it started this process.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def report(name: str, result: dict[str, Any], notes: Sequence[str], as_json: bool) -> None:
    """Print a result: one JSON object on standard output, or a table for people.

    Args:
        name: The benchmark.
        result: With `ratios` (rival to how many times better this library is), `figures`, `n`, `versions`, `hardware`.
        notes: Shown above the table; on standard error with ``--json``.
        as_json: Print the object.
    """
    if as_json:
        for note in notes:
            print(note, file=sys.stderr)
        print(json.dumps(result, indent=2))
        return
    print(f"# {name}", *notes, sep="\n")
    rows = [(f"ratio to {rival}", value) for rival, value in result["ratios"].items()] + list(result["figures"].items())
    width = max(len(row[0]) for row in rows)
    for label, value in rows:
        shown = f"{value:,.4g}" if isinstance(value, float) else str(value)
        print(f"{label:<{width}}  {shown}")
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    print(f"n = {result['n']}; {versions}; {result['hardware']['cpu']}, {result['hardware']['cores']} cores")
