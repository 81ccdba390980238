"""The style meter on roles whose style is known: what it must tell apart, and what it must not be able to."""

import random
from pathlib import Path
from typing import Any

import pytest
from sklearn.svm import LinearSVC

from rolellm import load_rolebench
from rolellm.core.errors import DataError
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Language, Row, Subset
from rolellm.scoring.style import FOLDS, LanguageStyle, measure_style

from ..commands import Command

TOPICS = ("tides", "gulls", "ropes", "lamps", "salt", "stones", "storms", "boats", "coves", "nets")
VOICES = {
    "Keeper": "Verily, {} are what thou seekest, good sir.",
    "Smuggler": "Arr, 'tis {}, matey, and no mistake!",
    "Gull": "Kraa! {}? Kraa, kraa!",
}


def rows(voices: dict[str, str] = VOICES, *, language: Language = "en", subset: Subset = "general") -> list[Row]:
    """Every role answers the same forty instructions in its voice; what is said has nothing to do with who says it."""
    draw = random.Random(0)
    found = []
    for number in range(40):
        said = " and ".join(draw.sample(TOPICS, 3))
        for role, voice in voices.items():
            name = f"{language}-{number}-{role}"
            found.append(Row(name, role, language, subset, f"What of no. {number}?", (voice.format(said),)))
    return found


def measured(given: list[Row], answers: dict[str, str] | None = None) -> LanguageStyle:
    return measure_style(given, {"": answers or {}})[""].languages["en"]


def test_voices_are_told_apart_on_instructions_that_it_has_not_seen() -> None:
    meter = measured(rows()).meter
    top1, told = meter.top1, meter.same_instruction
    assert top1 and top1.low is not None and told and top1.mean == told.mean == 1
    assert (top1.n, top1.clusters, meter.chance) == (120, 40, 1 / 3)
    assert top1.low < 1
    assert meter.confusion == {role: {role: 40} for role in sorted(VOICES)}


def test_roles_without_a_style_of_their_own_are_at_chance() -> None:
    # What each says differs from instruction to instruction, and nobody has a voice: content gives nobody away.
    meter = measured(rows(dict.fromkeys(VOICES, "It is {}, to be sure."))).meter
    assert meter.same_instruction.mean == 0.5
    assert meter.top1.mean < 0.6


def test_a_models_replies_are_measured_by_role_and_named_by_whom_they_sound_like() -> None:
    given = rows()
    answers = {row.id: VOICES["Smuggler"].format("oil") for row in given if row.role != "Gull"}
    found = measured(given, answers)
    assert found.meter == measured(given).meter
    replies = found.replies
    assert replies and replies.top1 and replies.top1.mean == 0.5
    assert {role: share.mean for role, share in replies.by_role.items()} == {"Keeper": 0, "Smuggler": 1}
    assert replies.confusion == {"Keeper": {"Smuggler": 40}, "Smuggler": {"Smuggler": 40}}


def test_to_copy_a_reference_of_another_instruction_gains_nothing_but_its_style() -> None:
    """Nobody's reply to an instruction is learned by what judges replies to it: a copy is judged like its original."""
    given = rows({**VOICES, "Cook": "Well, {}."})
    found = measured(given, {row.id: row.references[0] for row in given})
    assert found.replies == found.meter


def test_each_language_has_a_meter_of_its_own() -> None:
    chinese = rows({"李白": "哈哈，{}，诗也。", "张飞": "俺也{}，吃我一矛！"}, language="zh")
    found = measure_style([*rows(), *chinese], {"": {}})[""].languages
    assert found.keys() == {"en", "zh"}
    top1 = found["zh"].meter.top1
    assert found["zh"].roles == ("张飞", "李白") and top1 and top1.mean == 1
    assert found["en"].meter == measured(rows()).meter


def test_systems_share_one_training_and_have_the_figures_that_each_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = rows()
    answers = {
        "copy": {row.id: row.references[0] for row in given},
        # Answers some rows only, with words that no reference has.
        "parrot": {row.id: "Polly, matey, and Polly thou!" for row in given if row.role != "Gull"},
        "mute": {},
    }
    alone = {name: measure_style(given, {name: texts})[name] for name, texts in answers.items()}
    fit, machines = LinearSVC.fit, []

    def record_fit(machine: LinearSVC, *data: Any) -> LinearSVC:
        machines.append(machine)
        return fit(machine, *data)

    monkeypatch.setattr(LinearSVC, "fit", record_fit)
    assert measure_style(given, answers) == alone
    assert len(machines) == FOLDS


@pytest.mark.parametrize(
    ("given", "answers", "words"),
    [
        pytest.param(rows({"Gull": "Kraa {}"}), {}, "two roles", id="one-role"),
        pytest.param(rows()[:3], {}, "several instructions", id="one-instruction"),
        pytest.param(rows(), {"else": "Arr!"}, "no reply answers", id="no-answer"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(given: list[Row], answers: dict[str, str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        measure_style(given, {"": answers})


@pytest.mark.slow
def test_the_command_prints_both_and_writes_json(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "P.jsonl"
    sample = load_rolebench("sample", "test")
    write_jsonl(path, ({"id": row["id"], "prediction": row["rolegpt"]} for row in sample))
    words = ("score", "--style", "--config", "sample")
    shown = command(*words, path)
    assert shown.code == 0
    assert "the meter, on references" in shown.out and "top-1 of replies %" in shown.out.lower()
    found = command(*words, path, "--json").result
    assert found["languages"].keys() == {"en", "zh"}
    english = found["languages"]["en"]
    assert english["replies"]["top1"]["n"] == 20
    assert english["meter"]["top1"]["mean"] > english["meter"]["chance"]
    assert command(*words, "--json").result["languages"]["en"]["replies"] is None
