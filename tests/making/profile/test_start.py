import json
from pathlib import Path
from typing import Any

from rolellm.core.fingerprint import hash_file
from rolellm.making.profile.start import start_sheet


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def row(role: str, speaker: str, content: str, kind: str = "speech") -> dict[str, Any]:
    return {"role": role, "speaker": speaker, "content": content, "kind": kind, "scene": 0, "start": 0, "end": 1}


def test_the_layout_of_parse_brings_the_names_that_the_script_has(tmp_path: Path) -> None:
    rows = [
        row("Coriolanus", "MARCIUS", "Thanks."),
        row("MENENIUS", "MENENIUS", "Hail."),
        row("Coriolanus", "CORIOLANUS", "Ha!"),
        row("Coriolanus", "MARCIUS", "Go."),
        row("scene", "scene", "A street.", "direction"),
    ]
    file = write(tmp_path / "d.jsonl", rows)
    found = start_sheet(file, "Coriolanus", aliases=["Caius Marcius", "MARCIUS"])
    assert found.aliases == ("Caius Marcius", "MARCIUS")
    assert (found.language, found.script, len(found.turns)) == ("en", "d.jsonl", 5)
    assert found.made == {"source": {"file": "d.jsonl", "sha256": hash_file(file)}}
