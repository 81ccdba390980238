"""Every command on the embedded sample: its ``--json``, its exit code, and the files that it leaves.

What is compared, and how a recording is made anew, is in `golden`.
"""

import json
from pathlib import Path

import pytest

from rolellm.data.rolebench.statistics import count_table_one

from .conftest import Case, Shell, fill_sheet
from .golden import UPDATE, check, recordings

pytestmark = pytest.mark.slow

QUEEN = '"Queen of Hearts"'
TINY = (
    "--set data.max_rows=6 --set data.replies=first --set training.max_length=512 "
    "--set base.tiny.hidden_size=16 --set base.tiny.intermediate_size=32 "
    "--set base.tiny.layers=1 --set base.tiny.heads=2 --set base.tiny.vocab_size=700 --set base.warm.alone=1 "
    "--set base.warm.in_role=1 --set training.max_steps=4 --set training.replies_per_step=2"
)
FEW = '--config sample --role "Queen of Hearts" --set subset=role_specific --max-new-tokens 4 --set batch_size=2'
JUDGE = "judge tuned.jsonl base.jsonl --config sample --role 鲁智深 --limit 6"

GROUPS: dict[str, dict[str, Case]] = {
    "data": {
        "build": Case("data build --data-dir {sample} --out built --json", left=("built",)),
        "push": Case(
            "data push me/rolebench --data-dir {sample} --config sample --config roles --public --json",
            hub=("dataset:me/rolebench",),
        ),
        "push again": Case(
            "data push me/rolebench --data-dir {sample} --config sample --json",
            after=("push",),
            hub=("dataset:me/rolebench",),
        ),
    },
    "role": {
        "parse": Case(
            f"role parse queen.txt --role {QUEEN} --out queen.jsonl --json", left=("queen.jsonl",), exact=("*",)
        ),
        "parse Chinese": Case(
            "role parse lu.txt --role 鲁智深 --out lu.jsonl --json", left=("lu.jsonl",), exact=("*",)
        ),
        "build": Case(
            f"role build queen.jsonl --role {QUEEN} --out queen --llm rules.yaml --json",
            after=("parse",),
            left=("queen",),
            exact=("*/dialogue.jsonl",),
        ),
        "import a card": Case("role card tobin.json --out tobin --json", left=("tobin",), exact=("*/card.json",)),
        "write a card as a picture": Case(
            "role card queen --out queen.png --json", after=("build",), left=("queen.png",)
        ),
        "show a character": Case("role card tobin --json", after=("import a card",)),
        "instruct": Case(
            "instruct queen --llm rules.yaml --per-role 20 --set chunk_tokens=300 --json",
            after=("build",),
            left=("queen/instruct",),
        ),
        "instruct over HTTP": Case(
            "instruct queen --llm {llm} --model rules --per-role 20 --set chunk_tokens=300 --out http --json",
            after=("build",),
            left=("http",),
        ),
        "respond": Case(
            "respond queen --instructions general.jsonl --limit 5 --llm rules.yaml --json",
            after=("build",),
            left=("queen/respond",),
        ),
        "show a character after all stages": Case("role card queen --json", after=("instruct", "respond")),
        "release": Case(
            "role release queen --out made --json",
            after=("show a character after all stages",),
            left=("made",),
            exact=("*.jsonl",),
        ),
    },
    "train": {
        "train": Case(f"train smoke-cpu-lora {TINY} --out run --json", left=("run",)),
        "preview": Case(f"train smoke-cpu {TINY} --out never --preview --limit 1 --json"),
        "generate": Case(
            f"generate --model run --out answers.jsonl {FEW} --json",
            after=("train",),
            left=("answers.jsonl", "answers.jsonl.meta.json"),
        ),
        "score of it": Case("score answers.jsonl --config sample --json", after=("generate",)),
        "push": Case(
            "push run me/adapter --license mit --set base_model=me/base --json",
            after=("train",),
            hub=("model:me/adapter",),
        ),
        "push merged": Case(
            "push run me/merged --license mit --merge --public --json", after=("train",), hub=("model:me/merged",)
        ),
        "push dry run": Case("push run me/never --license mit --merge --dry-run --json", after=("train",)),
        "convert-chatglm": Case("data convert-chatglm chatglm/published native --json", left=("native",)),
    },
    "score": {
        "rouge-score": Case("score tuned.jsonl --config sample --json"),
        "paper": Case("score base.jsonl --config sample --protocol paper --json"),
        "rows and predictions unmatched": Case("score half.jsonl --config sample --json"),
        "released baseline": Case(
            "score {sample}/rolebench-zh/general/rolegpt_baseline.jsonl"
            " {sample}/rolebench-zh/role_specific/rolegpt_baseline.jsonl"
            " --config instruction-generalization-zh --data-dir {sample} --protocol paper --json"
        ),
    },
    "judge": {
        "judge": Case(f"{JUDGE} --llm words.yaml --out judged --json", left=("judged",)),
        "jury": Case(
            f"{JUDGE} --llm jury.yaml --jury --judge role-pair --set canaries=false --out jury --json", left=("jury",)
        ),
        "dry run": Case(f"{JUDGE} --llm dear-words.yaml --dry-run --json"),
        "over its budget": Case(
            f"{JUDGE} --llm dear-words.yaml --budget 5 --out stopped-judge --json", left=("stopped-judge/result.json",)
        ),
        "label sheet": Case("label judged --annotator anna --limit 4 --sheet labels.csv --json", after=("judge",)),
        "label": Case(
            "label judged --annotator anna --limit 4 --sheet labels.csv --json",
            after=("label sheet",),
            left=("judged/labels",),
            prepare=fill_sheet,
        ),
        "agreement": Case("label --agreement judged --json", after=("label",)),
        "report": Case(
            "report judged --out judged.html --tables tables --json", after=("judge",), left=("judged.html", "tables")
        ),
        "report of predictions": Case(
            "report mine=tuned.jsonl base.jsonl --config sample --set protocol=paper"
            " --out plain.html --tables plain --json",
            left=("plain.html", "plain"),
        ),
    },
}
EVERY = [(group, name) for group, cases in GROUPS.items() for name in cases]


@pytest.mark.parametrize(("group", "name"), [pytest.param(*case, id=" ".join(case)) for case in EVERY])
def test_a_command_does_what_it_did(group: str, name: str, shell: Shell) -> None:
    check(group, name, shell.record(name, GROUPS[group]))


PUBLISHED = {
    "instruction-generalization-eng": ["rolebench-eng/instruction-generalization/role_specific"],
    "instruction-generalization-zh": ["rolebench-zh/general", "rolebench-zh/role_specific"],
    "role-generalization-eng": ["rolebench-eng/role-generalization/role_specific"],
}


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("config", "protocol"),
    [*((config, "paper") for config in PUBLISHED), ("instruction-generalization-eng", "rouge-score")],
)
def test_the_reproduced_numbers(config: str, protocol: str, shell: Shell, real_release: Path) -> None:
    files = [f'"{real_release}/{folder}/rolegpt_baseline.jsonl"' for folder in PUBLISHED[config]]
    options = f'--config {config} --protocol {protocol} --data-dir "{real_release}" --json'
    ended = shell.run(Case(f"score {' '.join(files)} {options}"))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    wanted = ("protocol", "config", "split", "metrics", "unmatched", "fingerprint", "counts")
    check("published", f"{config}, {protocol}", shell.normal.json({key: found[key] for key in wanted}))


@pytest.mark.realdata
def test_the_release_as_it_is_counted(shell: Shell, real_release: Path) -> None:
    table = count_table_one(real_release).to_dict()
    check("published", "Table 1", shell.normal.json({"lines": table["lines"], "missing": table["missing"]}))


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_is_recorded_of_cases_that_are_gone(group: str) -> None:
    if UPDATE:
        pytest.skip("the recordings are being made")
    assert recordings(group).keys() == GROUPS[group].keys()
