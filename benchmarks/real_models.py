"""What the stages make of a real model: accepted at once, after a repair, kept with defects, refused, and why.

    python benchmarks/real_models.py --llm llm.yaml [--out FOLDER] [--samples FILE] [--json]
    python benchmarks/real_models.py --llm llm.yaml --script hamlet.txt=Hamlet --pairs 20 --replies 10 --verdicts 0

Every stage runs for one English and one Chinese character of the sample, or for those of the scripts that are named. A
run that stopped continues in its folder. `leaks` counts the kept texts that have words of our prompts in them
(`rolellm.models.prompts.leaks`). As a judge, the model gets a certificate (`rolellm.certify`). `--samples` writes what
was asked for and came back, unedited: the first twenty of each stage, kept or not.
"""

import argparse
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import patch

from common import environment, existing, report

import rolellm
from rolellm.core.records import Language
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.schema import FOLDERS
from rolellm.llm.client import Client
from rolellm.llm.model import Answer, Failure, Outcome
from rolellm.models.prompts.leaks import make_leak_check

GOALS = "Goals: every stage ends usable, leaks = 0, pairs kept >= 0.6 of the candidates, verdicts parsed >= 0.95."
SCRIPTS = {"Queen of Hearts": "Queen of Hearts.txt", "诸葛亮": "诸葛亮.txt"}
INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "en": (
        "What is the opposite of fast?",
        "Name three things that you would take on a long journey.",
        "Write a short greeting for a friend's birthday.",
        "How many days are there in a week?",
        "Give a piece of advice to somebody who cannot sleep.",
    ),
    "zh": (
        "“快”的反义词是什么？",
        "出一趟远门，你会带哪三样东西？",
        "给朋友写一句生日祝福。",
        "一个星期有几天？",
        "有人睡不着觉，请给他一个建议。",
    ),
}
SAMPLES = 20
#: A weak model that writes on without an end costs minutes for each reply.
MOST_TOKENS = 1000


class Watch:
    """Takes down every outcome of every client, by the stage in its request's tag."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[Outcome[Any]]] = defaultdict(list)
        noted = Client._record_outcome

        def note(client: Client, outcome: Outcome[Any]) -> None:
            stage, _, rest = outcome.request.tag.partition("/")
            self.outcomes[f"{stage}/{rest}" if stage == "profile" else stage].append(outcome)
            noted(client, outcome)

        patch.object(Client, "_record_outcome", note).start()

    def rows(self) -> dict[str, dict[str, Any]]:
        """What became of each stage's requests."""
        return {stage: _row(outcomes) for stage, outcomes in self.outcomes.items()}


def _row(outcomes: list[Outcome[Any]]) -> dict[str, Any]:
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    reasons = Counter(reason for outcome in outcomes for reason in outcome.refused)
    calls = sum(outcome.attempts for outcome in outcomes)
    tokens = sum(one.reply.usage.completion for one in answers)
    return {
        "requests": len(outcomes),
        "at_once": sum(one.attempts == 1 for one in answers),
        "repaired": sum(one.attempts > 1 and not one.defects for one in answers),
        "with_defects": sum(bool(one.defects) for one in answers),
        "refused": sum(isinstance(outcome, Failure) for outcome in outcomes),
        "calls_an_answer": calls / max(len(answers), 1),
        "tokens_an_answer": tokens / max(len(answers), 1),
        "reasons": dict(reasons.most_common(8)),
    }


def characters(scripts: list[str]) -> Iterator[tuple[str, Path]]:
    """Roles and their scripts."""
    if not scripts:
        home = resources.files("rolellm.data.rolebench").joinpath("sample", "scripts")
        yield from ((role, Path(str(home / name))) for role, name in SCRIPTS.items())
    for given in scripts:
        path, _, role = given.rpartition("=")
        yield role, Path(path)


def stages(role: str, script: Path, llm: Any, home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build, instruct and respond for one character."""
    begun = time.monotonic()
    folder = home / role
    if (folder / "profile.json").is_file():
        character = rolellm.Character.load(folder)
    else:
        character = rolellm.Character.from_script(script, role=role, aliases=arguments.alias).save(folder)
    character = character.build(llm, max_tokens=MOST_TOKENS)
    per = min(arguments.pairs, 10)
    character = character.instruct(llm, per_role=arguments.pairs, per_request=per, max_tokens=MOST_TOKENS)
    asked = list(INSTRUCTIONS[character.language][: arguments.replies])
    if asked:
        character = character.respond(llm, asked, replies=1)
    made = json.loads((folder / "instruct" / "manifest.json").read_text(encoding="utf-8"))["summary"]["counts"]
    kept = [json.loads(line) for line in (folder / "instruct" / "kept.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = [character.description or "", character.background or ""]
    texts += [f"{pair['question']}\n{pair['answer']}" for pair in kept]
    return {
        "language": character.language,
        "minutes": (time.monotonic() - begun) / 60,
        "defects": character.made["build"]["defects"],
        "candidates": made["candidates"],
        "pairs_kept": made["kept"] / max(made["candidates"], 1),
        "dropped": {name: count for name, count in made["dropped"].items() if count},
        "leaks": leaks(character.language, texts),
    }


def leaks(language: Language, texts: list[str]) -> int:
    """How many texts have words of our prompts in them."""
    check = make_leak_check(language, "")
    return sum(check(text) is not None for text in texts)


def verdicts(language: Language, given: argparse.Namespace) -> dict[str, Any]:
    """The model as a judge of rows of one language: its certificate."""
    config = f"instruction-generalization-{FOLDERS[language]}" if given.data_dir else "sample"
    data = load_rolebench(config, "test", data_dir=given.data_dir)
    rows = data.select([place for place, name in enumerate(data["language"]) if name == language])
    found = rolellm.certify(given.llm, rows, limit=given.verdicts, out=given.out / f"certificate-{language}")
    return {"verdict": found.verdict, "line": found.line, "rows": found.rows}


def samples(outcomes: dict[str, list[Outcome[Any]]]) -> str:
    """The last message and the reply of the first requests of each stage, unedited."""
    parts = []
    for stage, found in outcomes.items():
        parts.append(f"## {stage}")
        for outcome in found[:SAMPLES]:
            said = outcome.reply.text if outcome.reply is not None else "(no reply)"
            state = "taken" if isinstance(outcome, Answer) else f"refused: {outcome.reason}"
            defects = "; ".join(outcome.defects) if isinstance(outcome, Answer) else ""
            head = [
                outcome.request.tag,
                state,
                f"attempt {outcome.attempts}",
                *([f"defects: {defects}"] if defects else []),
            ]
            parts += [f"**{', '.join(head)}**", f"```text\n{said}\n```"]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run all stages and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", type=existing, required=True, help="the model's settings file")
    parser.add_argument("--out", type=Path, default=Path("real_models"), help="the folder that keeps every reply")
    parser.add_argument("--script", action="append", default=[], metavar="FILE=ROLE")
    parser.add_argument("--alias", action="append", default=[])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--replies", type=int, default=5)
    parser.add_argument("--verdicts", type=int, default=10, help="rows a language of the judge's certificate")
    parser.add_argument("--data-dir", default=os.environ.get("ROLEBENCH_DIR"), help="judge rows of this release")
    parser.add_argument("--only-judge", action="store_true", help="leave the other stages out")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    watch, found = Watch(), {}
    languages: list[Language] = []
    for role, script in () if arguments.only_judge else characters(arguments.script):
        found[role] = stages(role, script, arguments.llm, arguments.out, arguments)
        languages.append(found[role]["language"])
    judged = {}
    for language in dict.fromkeys(languages or ("en", "zh")) if arguments.verdicts else ():
        judged[language] = verdicts(language, arguments)
    parts: dict[str, Any] = {"character": found, "stage": watch.rows(), "judge": judged}
    if arguments.samples:
        arguments.samples.write_text(samples(watch.outcomes), encoding="utf-8")
    figures = {
        f"{part} {name}, {figure}": value
        for part, named in parts.items()
        for name, one in named.items()
        for figure, value in one.items()
    }
    count = sum(map(len, watch.outcomes.values()))
    result = {"ratios": {}, "figures": figures, "n": count, **environment("openai")}
    report("real_models", result, [GOALS], arguments.json)


if __name__ == "__main__":
    main()
