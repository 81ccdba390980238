"""The audit finds what is planted in a copy of the sample, and nothing of the kind in the sample itself."""

import inspect
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.reply_rules import RULES
from rolellm.data.rolebench.source import sample_folder
from rolellm.making.audit import audit_release, load_consequences

FOLDER = "rolebench-zh/role_specific"
TEST = f"{FOLDER}/test.jsonl"


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _counts(root: Path) -> dict[str, int]:
    return {item.check: item.count for item in audit_release(root).findings if item.file == TEST}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_folder(), tmp_path / "release"))


def test_planted_faults_are_counted_and_located(release: Path) -> None:
    before = _counts(release)
    rows = _read(release / TEST)
    train = _read(release / FOLDER / "train.jsonl")
    role = rows[0]["role"]
    planted = [
        train[0],
        {**rows[0], "question": f" {rows[0]['question']} "},
        {
            "role": role,
            "question": "新的问题一？",
            "generated": ["作为一个语言模型，我没有感情。"],
            "type": "x",
        },
        {"role": role, "question": "新的问题二？", "generated": ["This whole reply is in English."], "type": "x"},
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows, *planted])
    (release / TEST).write_text(text, "utf-8")
    after = _counts(release)
    more = {check: count - before.get(check, 0) for check, count in after.items()}
    assert more["(role, question) in train"] == 1
    assert more["question in train"] == 1
    assert more["duplicate, white space stripped"] == 1
    assert "duplicate (role, question)" not in after
    assert more["reference says that it is an AI"] == 1
    assert more["reference is in the wrong language"] == 1
    leak = next(
        item for item in audit_release(release).findings if item.file == TEST and item.check == "question in train"
    )
    assert len(rows) + 1 in leak.lines


EN, ENGLISH = "rolebench-eng/instruction-generalization", "rolebench-eng/role-generalization"


def _found(root: Path, check: str) -> dict[str, int]:
    return {item.file: item.count for item in audit_release(root).findings if item.check == check}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def _copy_a_row(root: Path) -> None:
    rows = _read(root / ENGLISH / "role_specific" / "test.jsonl")
    _write(root / ENGLISH / "role_specific" / "train.jsonl", rows[:1])


def _copy_a_baseline(root: Path) -> None:
    baselines = [root / config / "general/rolegpt_baseline.jsonl" for config in (EN, ENGLISH)]
    shutil.copy(baselines[0], baselines[1])


def _respell_a_name(root: Path) -> None:
    names = json.loads((root / "profiles-eng/desc.json").read_text("utf-8"))
    scripts = {name.upper(): "A book" for name in names} | {"Nobody": "No book"}
    (root / "profiles-eng/scripts.json").write_text(json.dumps(scripts), "utf-8")


def _ask_something_new(root: Path) -> None:
    path = root / ENGLISH / "general" / "test.jsonl"
    rows = _read(path)
    _write(path, [{**rows[0], "question": "Which bell rings for the ferry at dusk?"}, *rows[1:]])


def _change_a_type(root: Path) -> None:
    path = root / TEST
    rows = _read(path)
    usual = _read(root / FOLDER / "train.jsonl")[0]["type"]
    other = usual[0] if isinstance(usual, list) else [usual] * len(rows[0]["generated"])
    _write(path, [{**row, "type": usual} for row in rows[1:]] + [{**rows[0], "type": other}])


@pytest.mark.parametrize(
    ("plant", "check", "file", "least"),
    [
        pytest.param(_copy_a_row, "held-out role in train", f"{ENGLISH}/role_specific/test.jsonl", 1, id="role"),
        pytest.param(
            _copy_a_baseline,
            "baseline file is another config's",
            f"{ENGLISH}/general/rolegpt_baseline.jsonl",
            1,
            id="baseline",
        ),
        pytest.param(_respell_a_name, "name spelled otherwise in desc.json", "profiles-eng/scripts.json", 2, id="name"),
        pytest.param(_respell_a_name, "name not in desc.json", "profiles-eng/scripts.json", 1, id="nobody"),
        pytest.param(
            _ask_something_new, "instruction without a target", f"{ENGLISH}/general/test.jsonl", 1, id="target"
        ),
    ],
)
def test_what_is_planted_elsewhere_is_found_there(
    release: Path, plant: Callable[[Path], None], check: str, file: str, least: int
) -> None:
    before = _found(release, check).get(file, 0)
    plant(release)
    assert _found(release, check)[file] >= before + least


def test_a_question_and_an_answer_with_light_edits_are_found(release: Path) -> None:
    train = _read(release / EN / "general" / "train.jsonl")
    long = "When the fog lies on the harbor at night, who lights the third lamp on the old stone pier?"
    said = "I light it myself, with a match from my left pocket, and I count every step on the way back."
    _write(release / EN / "general" / "train.jsonl", [*train, {"role": "Puck", "question": long, "generated": [said]}])
    path = release / EN / "general" / "test.jsonl"
    rows = _read(path)
    edited = {"role": "Puck", "question": long.upper().replace("OLD", "GRAY"), "generated": ["An owl, I would say."]}
    other = {"role": "Puck", "question": "Who?", "generated": [said.replace(",", " -").replace("match", "candle")]}
    _write(path, [*rows, edited, other])
    place = f"{EN}/general/test.jsonl"
    lines = {item.check: item.lines for item in audit_release(release).findings if item.file == place}
    assert len(rows) + 1 in lines["question nearly in train"]
    assert len(rows) + 2 in lines["answer nearly in train"]
    assert len(rows) + 1 not in lines["answer nearly in train"]


def test_a_short_answer_is_a_leak_only_with_its_question(release: Path) -> None:
    train, path = release / EN / "general" / "train.jsonl", release / EN / "general" / "test.jsonl"
    row = {"role": "Puck", "question": "Is the sea salt?", "generated": ["True."]}
    _write(train, [*_read(train), row])
    rows = _read(path)
    _write(path, [*rows, {**row, "generated": ["TRUE!"]}, {**row, "question": "Is the moon round?"}])
    (found,) = [
        item
        for item in audit_release(release).findings
        if item.check == "answer in train" and str(path).endswith(item.file)
    ]
    assert found.lines == (len(rows) + 1,)
    assert found.examples[0].text == "true"


def test_rows_of_another_shape_are_told_from_those_of_the_other_files(release: Path) -> None:
    _change_a_type(release)
    found = [
        item for item in audit_release(release).findings if item.check == "inconsistent schema" and item.file == TEST
    ]
    assert found[0].lines == (len(_read(release / TEST)),)
    assert "type: " in found[0].examples[0].why


def test_a_reply_in_another_language_is_none_where_it_is_asked_for(release: Path) -> None:
    english = "The water that we drank last night was not clean."
    before = _found(release, "reference is in the wrong language").get(TEST, 0)
    rows = _read(release / TEST)
    asked = {**rows[0], "question": "把这句话翻译成英文。", "generated": [english], "type": "x"}
    quoted = {**rows[0], "question": "那人说了什么？", "generated": [f"他说：“{english}”"], "type": "x"}
    _write(release / TEST, [*rows, asked, quoted])
    assert _found(release, "reference is in the wrong language").get(TEST, 0) == before


def test_bad_rows_are_listed_and_stop_nothing(release: Path) -> None:
    with (release / TEST).open("a", encoding="utf-8") as stream:
        stream.write('{"role": "x"}\nno JSON\n')
    found = audit_release(release)
    assert len(found.unread) == 2
    assert found.to_dict()["unread"] == list(found.unread)


def test_every_check_has_its_consequence() -> None:
    source = Path(inspect.getfile(audit_release)).read_text(encoding="utf-8")
    named = set(re.findall(r'(?:make_finding|check)\(\s*"([^"]+)"', source)) | {"baseline file is another config's"}
    named |= {f"{label} {how} train" for label in ("answer", "question") for how in ("in", "nearly in")}
    named |= {f"reference {words}" for words in (*RULES.values(), "is in the wrong language")}
    named |= {"duplicate (role, question)", "duplicate, white space stripped", "duplicate, normalized"}
    named |= {"name not in desc.json", "name spelled otherwise in desc.json"}
    assert {check for checks in load_consequences().values() for check in checks} == named


#: File, check, count: of the part of the release that lacks the English train files.
REAL = {
    (f"{EN}/role_specific/test.jsonl", "duplicate, white space stripped"): 25,
    (f"{ENGLISH}/role_specific/test.jsonl", "inconsistent schema"): 500,
    (f"{ENGLISH}/role_specific/test.jsonl", "duplicate (role, question)"): 17,
    (f"{ENGLISH}/role_specific/test.jsonl", "duplicate, white space stripped"): 213,
    (f"{ENGLISH}/role_specific/test.jsonl", "(role, question) in another test"): 696,
    (f"{ENGLISH}/role_specific/test.jsonl", "baseline missing"): 1_838,
    (f"{ENGLISH}/role_specific/rolegpt_baseline.jsonl", "baseline file is another config's"): 4_750,
    (f"{ENGLISH}/general/test.jsonl", "reference says that it is an AI"): 65,
    (f"{ENGLISH}/general/test.jsonl", "reference says that it plays a role"): 44,
    ("rolebench-zh/general/test.jsonl", "question in train"): 1_451,
    ("rolebench-zh/general/test.jsonl", "baseline among the references"): 72,
    (TEST, "question in train"): 7,
    (TEST, "question nearly in train"): 7,
    (TEST, "inconsistent schema"): 239,
}


@pytest.mark.slow
@pytest.mark.realdata
def test_the_faults_of_the_release_are_counted(real_release: Path) -> None:
    found = {(item.file, item.check): item.count for item in audit_release(real_release).findings}
    assert {key: found.get(key) for key in REAL} == REAL
    assert not [key for key in found if "name" in key[1] or "language" in key[1] or "target" in key[1]]
