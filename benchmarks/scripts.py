"""How many headers of real scripts get the right speaker, and how long a script takes.

    python benchmarks/scripts.py --texts FOLDER [--held-out] [--only NAME ...] [--wrong 5] [--megabytes 5] [--json]

FOLDER holds the texts that `scripts.json` lists by name, SHA-256 and source; a text that is missing or different is
named and left out. Each has a regular expression of our own for its true headers (group `name`), or for a table the
column with the speaker. A header is right if the first speech after it, and before the next, is that speaker's. Wrong,
too, is a speech of somebody else in its midst: a header where there is none. The entries marked `held_out` are for the
final figure, and are opened only with ``--held-out``. With ``--megabytes``, `rolellm role parse` also reads each text,
repeated to that size, and its processor time and peak memory are shown.
"""

import argparse
import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import environment, existing, report

from rolellm.characters.scripts.names import normalize_name
from rolellm.characters.scripts.parse import ParsedScript, parse_script
from rolellm.characters.scripts.source import make_source, read_source
from rolellm.core.errors import ScriptError
from rolellm.core.records import UNKNOWN

INDEX = Path(__file__).with_name("scripts.json")
# In a small process of its own: on Linux, a child's ru_maxrss starts from what its parent has.
MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(status, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def headers_of(text: str, entry: dict[str, Any]) -> list[tuple[int, int, str]]:
    """Where the true headers begin and end, and whom they name."""
    pattern = re.compile(entry["headers"], re.MULTILINE)
    found = [
        (match.start(), match.end(), make_source(match["name"]).text.strip())
        for match in pattern.finditer(text, text.find(entry.get("from", "")))
        if match["name"].strip() not in entry.get("not", ())
    ]
    # Names on lines of their own in small letters: what comes again so often is one, for a verse does not.
    counts = Counter(name for _, _, name in found)
    return [header for header in found if counts[header[2]] >= entry.get("least", 1)]


def judged(parsed: ParsedScript, headers: Sequence[tuple[int, int, str]]) -> tuple[int, int, list[str]]:
    """How many headers are right, of how many true and false ones, and what is wrong."""
    speeches = [
        (turn.start, normalize_name(name))
        for turn, name in zip(parsed.turns, parsed.speakers, strict=True)
        # "Narrator: ..." is narration to the data set; the header was read all the same.
        if turn.kind == "speech" or name not in ("narrator", "scene", "stage direction", turn.speaker)
    ]
    starts = [start for start, _ in speeches]
    right, wrong, false = 0, [], 0
    for at, (_, end, name) in enumerate(headers):
        limit = headers[at + 1][0] if at + 1 < len(headers) else starts[-1] + 1 if starts else 0
        said = [speaker for _, speaker in speeches[bisect_left(starts, end - 1) : bisect_left(starts, limit)]]
        right += bool(said) and said[0] == normalize_name(name)
        if not said or said[0] != normalize_name(name):
            wrong.append(f"{end}: {name!r} read as {said[:1]}")
        others = [speaker for speaker in said[1:] if speaker not in (normalize_name(name), normalize_name(UNKNOWN))]
        false += len(others)
        wrong += [f"{end}: after {name!r} comes {speaker!r}" for speaker in others]
    before = [speaker for start, speaker in speeches if headers and start < headers[0][1] - 1]
    wrong += [f"before the first header comes {speaker!r}" for speaker in before]
    return right, len(headers) + false + len(before), wrong


def rows_judged(parsed: ParsedScript, text: str, entry: dict[str, Any]) -> tuple[int, int, list[str]]:
    """The same of a table."""
    rows = list(csv.DictReader(io.StringIO(text), delimiter=entry["delimiter"]))
    expected = [normalize_name(row[entry["speaker"]]) for row in rows if row[entry["text"]].strip()]
    found = [normalize_name(name) for name in parsed.speakers]
    right = sum(one == two for one, two in zip(expected, found, strict=False))
    return right, max(len(expected), len(found)), []


def cost(path: Path, role: str, megabytes: float) -> str:
    """What the command takes for a text repeated to a size."""
    data = path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder, path.name)
        large.write_bytes(data * round(megabytes * 1e6 / len(data)))
        command = [sys.executable, "-m", "rolellm", "role", "parse", str(large), "--role", role, "--out"]
        command.append(str(Path(folder, "turns.jsonl")))
        done = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True)
        status, seconds, kilobytes = map(float, done.stdout.split())
        if status:
            return "refused"
        size = large.stat().st_size / 1e6
    return f"{size:.1f} MB in {seconds:.1f} s and {kilobytes * 1024 / 1e6:.0f} MB"


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=existing, required=True, help="the folder with the texts")
    parser.add_argument("--held-out", action="store_true", help="open the held-out half, for the final figure")
    parser.add_argument("--only", nargs="*", default=[], help="names of texts")
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong headers per text")
    parser.add_argument("--megabytes", type=float, help="time the command, too, on each text repeated to this size")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    notes: list[str] = []
    all_right = all_headers = 0
    layouts = set()
    for entry in json.loads(INDEX.read_text(encoding="utf-8")):
        path = given.texts / entry["name"]
        if entry.get("held_out", False) > given.held_out or (given.only and entry["name"] not in given.only):
            continue
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            notes.append(f"left out, missing or different: {entry['name']} ({entry['source']})")
            continue
        text = path.read_bytes().decode(read_source(path).encoding)
        begun = time.process_time()
        try:
            parsed = parse_script(path, entry["role"])
        except ScriptError as error:
            parsed = None
            notes.append(f"{entry['name']}: {str(error)[:300]}")
        seconds = time.process_time() - begun
        wrong: list[str] = []
        if parsed is None:
            right, total = 0, len(headers_of(text, entry)) if "headers" in entry else 1
        elif "headers" in entry:
            right, total, wrong = judged(parsed, headers_of(text, entry))
        else:
            right, total, wrong = rows_judged(parsed, text, entry)
        notes += [f"{entry['name']}: {line}" for line in wrong[: given.wrong]]
        layouts.add(entry["layout"])
        all_right, all_headers = all_right + right, all_headers + total
        shown = f"{right} of {total} = {100 * right / max(1, total):.2f} %"
        read_as = parsed.format if parsed else "refused"
        figures[f"{entry['name']} ({entry['layout']})"] = (
            f"{shown}; {read_as}, {parsed.spoken_in if parsed else '-'}; {len(text):,} characters in {seconds:.2f} s"
        )
        if given.megabytes:
            figures[f"{entry['name']}, repeated"] = cost(path, entry["role"], given.megabytes)
    figures |= {"percent_right": round(100 * all_right / max(1, all_headers), 3), "layouts": len(layouts)}
    result = {"ratios": {}, "figures": figures, "n": all_headers, **environment()}
    report("scripts", result, notes, given.json)


if __name__ == "__main__":
    main()
