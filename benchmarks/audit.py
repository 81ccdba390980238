"""The audit of a whole release: how long it takes, in how much memory, and which planted leaks it finds.

Usage::

    python benchmarks/audit.py --data-dir RELEASE [--rows 168093] [--json]

The full release has 168,093 samples, most of which a partial copy lacks. Here they are made from its own rows: three
words in ten are replaced by others of the same language, drawn at random, so that rows are as long and as odd as the
real ones and no two are nearly the same. One test row in fifty is a copy of a train row under another role: as it is,
in capitals, with other punctuation, with one word in ten replaced (in Chinese: one character), with its address or its
first clause at the end, or in traditional characters. A false alarm is any other row whose question or answer is said
to be, or nearly to be, in train. Each size runs in a process of its own.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opencc
from common import environment, report

SAMPLES = 168_093
EN, ZH = "rolebench-eng/instruction-generalization", "rolebench-zh"
#: File to write: its share of the samples, and the real file that its rows are made from.
FILES = {
    f"{EN}/general/train.jsonl": (112_142, "rolebench-eng/role-generalization/general/test.jsonl"),
    f"{EN}/general/test.jsonl": (28_083, "rolebench-eng/role-generalization/general/test.jsonl"),
    f"{EN}/role_specific/train.jsonl": (18_949, f"{EN}/role_specific/test.jsonl"),
    f"{ZH}/general/train.jsonl": (5_933, f"{ZH}/general/train.jsonl"),
    f"{ZH}/general/test.jsonl": (1_451, f"{ZH}/general/train.jsonl"),
    f"{ZH}/role_specific/train.jsonl": (1_535, f"{ZH}/role_specific/train.jsonl"),
}
PLANTED = ("exact", "case", "punctuation", "words", "address", "clauses", "traditional")
# An address is a first clause of at most four words, or six characters.
_ADDRESS = re.compile(r"((?:\w+ ){0,3}\w+)(,) (.+?)(\W*)", re.DOTALL)
_ADDRESS_ZH = re.compile(r"(\w{1,6})(，)(.+?)(\W*)", re.DOTALL)
_CLAUSE = re.compile(r"(.+?)([,;.!?，；。！？]+\s*)(\w.+?)(\W*)", re.DOTALL)
_PLANT_EVERY = 50
_RUN = """
import json, sys, time
sys.path.insert(0, {here!r})
from common import peak_memory_mb
from rolellm.making.audit import audit_release
started = time.perf_counter(), time.process_time()
found = audit_release({folder!r})
took = time.perf_counter() - started[0], time.process_time() - started[1]
json.dump({{"wall": took[0], "cpu": took[1], "peak_mb": peak_memory_mb(), "audit": found.to_dict()}}, sys.stdout)
"""


def replaced(text: str, share: float, vocabulary: list[str], draw: random.Random, language: str) -> str:
    """The text with that share of its words (in Chinese: characters) replaced by others."""
    parts = re.split(r"(\s+)", text) if language == "en" else list(text)
    places = [at for at, part in enumerate(parts) if any(map(str.isalnum, part))]
    for at in draw.sample(places, round(share * len(places))):
        parts[at] = draw.choice(vocabulary)
    return "".join(parts)


def edited(text: str, kind: str, vocabulary: list[str], draw: random.Random, language: str) -> str:
    """A light edit of one of the kinds of `PLANTED`."""
    if kind == "case":
        return text.upper()
    if kind == "punctuation":
        return re.sub(r"[,.!?;:，。！？；：]", lambda found: " -" if found.group() in ",，" else "…", text) + "!"
    if kind == "traditional":
        return opencc.OpenCC("s2t").convert(text) if language == "zh" else text
    if kind in ("address", "clauses"):
        pattern = _CLAUSE if kind == "clauses" else _ADDRESS if language == "en" else _ADDRESS_ZH
        parts = pattern.fullmatch(text)
        return (
            "".join((parts[3], parts[2].rstrip() + (" " if language == "en" else ""), parts[1], parts[4]))
            if parts
            else text
        )
    return replaced(text, 0.1, vocabulary, draw, language) if kind == "words" else text


def write_release(real: Path, out: Path, rows: int, seed: int = 0) -> dict[str, dict[int, str]]:
    """A release of about that many samples; which lines of its test files are planted, and how."""
    draw = random.Random(seed)
    planted: dict[str, dict[int, str]] = {}
    trains: dict[str, list[dict[str, Any]]] = {}
    for path, (share, source) in FILES.items():
        language = "en" if path.startswith(EN) else "zh"
        base = [json.loads(line) for line in (real / source).read_text("utf-8").splitlines()]
        texts = [text for row in base for text in (row["question"], *row["generated"])]
        pieces = (text.split() if language == "en" else text for text in texts)
        vocabulary = sorted({word for words in pieces for word in words if any(map(str.isalnum, word))})
        roles = sorted({row["role"] for row in base})
        made, planted[path] = [], {}
        for number in range(1, round(share * rows / SAMPLES) + 1):
            row = base[number % len(base)]
            texts = [replaced(text, 0.3, vocabulary, draw, language) for text in (row["question"], *row["generated"])]
            role = row["role"]
            if "test" in path and number % _PLANT_EVERY == 0:
                copied = draw.choice(trains[path.replace("test", "train")])
                role = draw.choice([other for other in roles if other != copied["role"]] or roles)
                sources = [copied["question"], *copied["generated"]]
                kind = PLANTED[number // _PLANT_EVERY % len(PLANTED)]
                texts = [edited(text, kind, vocabulary, draw, language) for text in sources]
                # Not every text has an address, a second clause, or characters with another form.
                kind = "exact" if texts[0] == sources[0] else kind
                planted[path][number] = kind
            made.append({**row, "role": role, "question": texts[0], "generated": texts[1:]})
        trains[path] = made
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), "utf-8")
    return planted


def measured(real: Path, rows: int) -> dict[str, Any]:
    """Time, memory and what was found, of a release of about that many samples."""
    with tempfile.TemporaryDirectory() as folder:
        planted = write_release(real, Path(folder), rows)
        counts = {path: (Path(folder) / path).read_bytes().count(b"\n") for path in FILES}
        code = _RUN.format(folder=folder, here=str(Path(__file__).parent))
        run = subprocess.run(
            [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    found = json.loads(run.stdout)
    figures = {name: found[name] for name in ("wall", "cpu", "peak_mb")}
    return {**figures, "rows": sum(counts.values()), **_scored(found["audit"], planted, counts)}


def _scored(audit: dict[str, Any], planted: dict[str, dict[int, str]], counts: dict[str, int]) -> dict[str, float]:
    """Shares of the planted rows that were found, by kind, and of the others that were said to leak."""
    scores: dict[str, float] = {}
    for what in ("question", "answer"):
        hits, all_of, false, others = Counter[str](), Counter[str](), 0, 0
        for path, count in counts.items():
            lines = set(_lines(audit, path, (f"{what} in train", f"{what} nearly in train")))
            if "test" in path:
                all_of.update(planted[path].values())
                hits.update(kind for line, kind in planted[path].items() if line in lines)
                false += len(lines - set(planted[path]))
                others += count - len(planted[path])
        scores |= {f"{what}, {kind}: found": hits[kind] / all_of[kind] for kind in PLANTED if all_of[kind]}
        scores[f"{what}: false alarms"] = false / others
    return scores


def _lines(audit: dict[str, Any], path: str, checks: tuple[str, ...]) -> Iterator[int]:
    for finding in audit["findings"]:
        if finding["file"] == path and finding["check"] in checks:
            yield from finding["lines"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--data-dir", default=os.environ.get("ROLEBENCH_DIR"), help="a local copy of the release")
    parser.add_argument("--rows", type=int, default=SAMPLES, help="samples")
    options = parser.parse_args()
    if not options.data_dir:
        parser.error("give --data-dir, or set ROLEBENCH_DIR")
    real = Path(options.data_dir)
    quarter, whole = measured(real, options.rows // 4), measured(real, options.rows)
    linear = (whole["cpu"] / whole["rows"]) / (quarter["cpu"] / quarter["rows"])
    figures = {**whole, "cpu a row over that at a quarter of the rows (1 is linear)": linear}
    result = {"ratios": {}, "figures": figures, "n": whole["rows"], **environment("rapidfuzz", "numpy", "opencc")}
    report("audit", result, [f"made from {real}"], options.json)


if __name__ == "__main__":
    main()
