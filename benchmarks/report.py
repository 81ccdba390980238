"""How large a report is in which every question can be browsed, and how soon a browser opens it.

    python benchmarks/report.py [--json] [--rows N] [--runs N] [--keep PAGE.html]

The page holds the rows of the largest test split of RoleBench with four models' answers, a canary's, and two reasons of
a judge for each. Its texts are made up: words drawn one by one, as often as a real vocabulary has them, which deflate
packs worse than sentences. Their lengths and repetitions are the release's: 1,500 instructions put to 95 roles with
about four references each, and role-specific questions that are asked once. Where $ROLEBENCH_DIR names a release, the
rows of its English test files are measured too, with answers and reasons from a chain of the references' word pairs.

Opening is timed in a headless Chromium (Debian's, through selenium), from the start of the navigation to the first
question and to the ``load`` event: medians over several. No rival does the same; the ratios are to the
goals.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, peak_memory_mb, report
from retrieval import english_words
from rich.console import Console

from rolellm.core.records import Row, Subset
from rolellm.judging.verdicts import RowOutcome
from rolellm.reporting.browse import BrowsePart
from rolellm.reporting.page import PageContent, write_page
from rolellm.reporting.section import Section
from rolellm.scoring.score_report import ScoreReport

ROWS, RUNS = 32_833, 5
ROLES, INSTRUCTIONS, SPECIFIC = 95, 1_500, 0.145
MODELS = ("RoleGPT", "RoleLLaMA-7B", "RoleGLM-6B", "Vicuna-13B")
CANARY = "null model"
GOAL_SECONDS, GOAL_MB = 3.0, 60.0
LOG = Console(stderr=True)

#: Makes a text of about so many words.
Writer = Callable[[float], str]


def writer_of_words() -> Writer:
    """Writes texts of about so many words, each word drawn on its own."""
    random = np.random.default_rng(0)
    words, weights = english_words()
    drawn: Iterator[str] = iter(())

    def refill() -> Iterator[str]:
        return iter(words[item] for item in random.choice(len(words), p=weights, size=1_000_000).tolist())

    def write(mean: float) -> str:
        nonlocal drawn
        length = max(1, int(random.lognormal(np.log(mean) - 0.18, 0.6)))
        taken = [word for _, word in zip(range(length), drawn, strict=False)]
        if len(taken) < length:
            drawn = refill()
            taken += [next(drawn) for _ in range(length - len(taken))]
        return " ".join(taken).capitalize() + "."

    return write


def writer_like(texts: Sequence[str]) -> Writer:
    """Writes texts whose every three words follow each other somewhere in the given ones."""
    random = np.random.default_rng(0)
    follows: dict[tuple[str, str], list[str]] = defaultdict(list)
    openings = []
    for text in texts:
        words = text.split(" ")
        openings.append(tuple(words[:2]) if len(words) > 1 else (words[0], ""))
        for one, two, three in zip(words, words[1:], words[2:], strict=False):
            follows[one, two].append(three)

    def write(mean: float) -> str:
        length = max(2, int(random.lognormal(np.log(mean) - 0.18, 0.6)))
        taken = list(openings[random.integers(len(openings))])
        while len(taken) < length:
            choices = follows.get((taken[-2], taken[-1]))
            taken += [choices[random.integers(len(choices))]] if choices else openings[random.integers(len(openings))]
        return " ".join(taken)

    return write


def made_rows(count: int, write: Writer) -> list[Row]:
    """Rows in the release's proportions."""
    random = np.random.default_rng(1)
    roles = [(f"Role {number}", write(110)) for number in range(ROLES)]
    asked = [(write(22), write(16)) for _ in range(INSTRUCTIONS)]
    rows: list[Row] = []
    for number in range(count):
        role, description = roles[number * ROLES // count]
        identity = f"{random.integers(2**62):016x}"
        if random.random() < SPECIFIC:
            kind = ("script_based", "script_agnostic")[number % 2]
            given: tuple[str, ...] = (write(65),)
            rows.append(Row(identity, role, "en", "role_specific", write(16), given, (kind,)))
        else:
            question, target = asked[number % INSTRUCTIONS]
            given = tuple(write(23) for _ in range(1 + number % 7))
            rows.append(Row(identity, role, "en", "general", question, given, raw_reference=target))
        rows[-1] = replace(rows[-1], role_description=description)
    return rows


def real_rows(folder: Path) -> list[Row]:
    """All English rows of a release's test files."""
    described = json.loads((folder / "profiles-eng" / "desc.json").read_text(encoding="utf-8"))
    rows: list[Row] = []
    for path in sorted((folder / "rolebench-eng").rglob("test.jsonl")):
        subset: Subset = "general" if path.parent.name == "general" else "role_specific"
        for line in path.read_text(encoding="utf-8").splitlines():
            value = json.loads(line)
            row = Row(f"{len(rows):016x}", value["role"], "en", subset, value["question"], tuple(value["generated"]))
            rows.append(replace(row, role_description=described.get(row.role)))
    return rows


def judged(rows: Sequence[Row], write: Writer) -> BrowsePart:
    """Rows with answers, outcomes and reasons."""
    random = np.random.default_rng(2)
    names = (*MODELS, CANARY)
    answers: dict[str, dict[str, str]] = {name: {} for name in names}
    outcomes: dict[str, dict[str, RowOutcome]] = {}
    for row in rows:
        outcomes[row.id] = {}
        for name, rank in zip(names, random.permutation(len(names)).tolist(), strict=True):
            answers[name][row.id] = "None." if name == CANARY else write(38)
            win = None if name == MODELS[0] else float(random.choice((0, 0.5, 1)))
            outcomes[row.id][name] = RowOutcome(win, rank + 1.0, (write(18), write(18)))
    rouge = {name: {row.id: float(random.random()) for row in rows} for name in names}
    return BrowsePart("judged", rows, answers, outcomes, rouge, {MODELS[0]: "baseline", CANARY: "canary"})


@dataclass(frozen=True)
class Opened:
    """Seconds since the navigation began, of one opening."""

    first_question: float
    load: float


def scores(part: BrowsePart) -> dict[str, ScoreReport]:
    """A made-up score report a system, with all roles, so that the page has its tables and plots."""
    random = np.random.default_rng(3)
    roles = dict.fromkeys(row.role for row in part.rows)

    def metrics() -> dict[str, Any]:
        means = {name: float(random.uniform(0.1, 0.6)) for name in ("CUS", "RAW", "SPE")}
        return {name: {"mean": mean, "ci95": [mean - 0.02, mean + 0.02], "n": 300} for name, mean in means.items()}

    common = {"protocol": "paper", "config": "made-up", "split": "test", "fingerprint": {"tokenizer": {"en": "words"}}}
    return {
        name: ScoreReport.from_dict(
            common | {"metrics": metrics() | {"avg": {"mean": 0.3}}, "by_role": {role: metrics() for role in roles}}
        )
        for name in part.answers
    }


def write(out: Path, part: BrowsePart) -> None:
    """A whole report."""
    write_page(out, PageContent("A report", [Section("", scores(part))], [part]))


def start_browser(profile: str) -> Any:
    """Chromium without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    service = webdriver.ChromeService(shutil.which("chromedriver"), env={**os.environ, "SE_OFFLINE": "true"})
    return webdriver.Chrome(options=options, service=service)


def open_page(driver: Any, page: Path) -> Opened:
    """Open it and wait for the first question and for the end of loading."""
    driver.get("about:blank")
    driver.get(page.as_uri())
    marks = """
        const mark = performance.getEntriesByName("browse-shown")[0];
        return [mark ? mark.startTime : 0, performance.getEntriesByType("navigation")[0].loadEventEnd];
    """
    times = [0.0, 0.0]
    while not all(times):
        times = driver.execute_script(marks)
        time.sleep(0.02)
    return Opened(times[0] / 1e3, times[1] / 1e3)


def search(driver: Any, words: str) -> tuple[float, float, str]:
    """Search all texts: seconds, the longest that the page stood still meanwhile, and what it says it found."""
    return tuple(
        driver.execute_async_script(
            """
            const [words, done] = arguments;
            const input = document.getElementById("browse-text");
            let still = 0, last = performance.now();
            const begun = last;
            const look = () => {
              const now = performance.now();
              still = Math.max(still, now - last);
              last = now;
              const busy = document.getElementById("browse-progress").textContent;
              if (now - begun > 500 && !busy) {
                done([(now - begun) / 1e3, still / 1e3, document.getElementById("browse-status").textContent]);
              } else setTimeout(look, 0);
            };
            input.value = words;
            document.getElementById("browse-form").requestSubmit();
            look();
            """,
            words,
        )
    )


def measure(part: BrowsePart, page: Path, runs: int) -> dict[str, Any]:
    """Write the page, and open it so many times."""
    before, begun = peak_memory_mb(), time.perf_counter()
    write(page, part)
    took = time.perf_counter() - begun
    figures: dict[str, Any] = {
        "rows": len(part.rows),
        "text_mb": sum(map(len, texts(part))) / 1e6,
        "file_mb": page.stat().st_size / 1e6,
        "writing_seconds": took,
        "writing_added_to_peak_memory_mb": peak_memory_mb() - before,
    }
    LOG.print(f"{figures['file_mb']:.1f} MB written in {took:.1f} s")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = start_browser(profile)
        driver.set_script_timeout(120)
        try:
            opened = [open_page(driver, page) for _ in range(runs)]
            seconds, still, said = search(driver, "zzzz")
            LOG.print(f"searched: {said}")
        finally:
            driver.quit()
    figures["first_question_seconds"] = statistics.median(one.first_question for one in opened)
    figures["first_question_seconds_worst"] = max(one.first_question for one in opened)
    figures["load_seconds"] = statistics.median(one.load for one in opened)
    figures["load_seconds_worst"] = max(one.load for one in opened)
    return figures | {"search_seconds": seconds, "search_stands_still_seconds": still}


def texts(part: BrowsePart) -> Iterator[str]:
    """All texts of the rows, those that repeat as often as they do."""
    for row in part.rows:
        yield from (row.question, *row.references, row.raw_reference or "", row.role_description or "")
        yield from (given[row.id] for given in part.answers.values())
        yield from (reason for outcome in part.outcomes[row.id].values() for reason in outcome.reasons)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help="made-up rows (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="openings (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="PAGE", help="leave the page of made-up rows here")
    arguments = parser.parse_args()
    if arguments.rows < 1 or arguments.runs < 1:
        parser.error("give 1 row and 1 run at least")
    figures: dict[str, Any] = {"load_at_start": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        page = arguments.keep or Path(folder) / "report.html"
        words = writer_of_words()
        part = judged(made_rows(arguments.rows, words), words)
        made = measure(part, page.resolve(), arguments.runs)
        figures |= {f"made_{name}": value for name, value in made.items()}
        release = os.environ.get("ROLEBENCH_DIR")
        if release:
            rows = real_rows(Path(release))
            chain = writer_like([text for row in rows for text in row.references])
            real = measure(judged(rows, chain), Path(folder) / "real.html", arguments.runs)
            figures |= {f"real_{name}": value for name, value in real.items()}
    result = {
        "ratios": {
            "goal_seconds": GOAL_SECONDS / max(made["first_question_seconds"], made["load_seconds"]),
            "goal_mb": GOAL_MB / made["file_mb"],
        },
        "figures": figures | {"peak_memory_mb": peak_memory_mb()},
        "n": {"rows": arguments.rows, "models": len(MODELS), "openings": arguments.runs},
        **environment("numpy", "selenium"),
    }
    report("report", result, [f"goals: opens in under {GOAL_SECONDS:g} s, under {GOAL_MB:g} MB"], arguments.json)


if __name__ == "__main__":
    main()
