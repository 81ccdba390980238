"""Runs an `evaluate` module as a user does: in a process of its own, with caches that nothing has touched."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_CACHES = {"HF_HOME": "", **{f"HF_{name.upper()}_CACHE": name for name in ("datasets", "modules", "evaluate")}}


def run_calls(place: Path, cwd: Path, code: str, calls: dict[str, Any], card: str) -> dict[str, Any]:
    """What the module answers.

    Args:
        place: A folder for the files in between.
        cwd: Where the process runs.
        code: Reads the calls from the file of its first argument, and writes what they gave to that of its second.
        calls: By name.
        card: The module's card, whose two Python blocks run after the code.
    """
    asked, given, script = place / "calls.json", place / "results.json", place / "code.py"
    asked.write_text(json.dumps(calls), encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(blocks) == 2
    script.write_text("\n".join([code, *blocks]), encoding="utf-8")
    env = {**os.environ, **{name: str(place / "hf" / folder) for name, folder in _CACHES.items()}}
    words = [sys.executable, str(script), str(asked), str(given)]
    shown = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert shown.returncode == 0, shown.stderr
    return dict(json.loads(given.read_text(encoding="utf-8")))
