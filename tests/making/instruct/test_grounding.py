import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Profile, Turn
from rolellm.llm.tokens import TokenCounter
from rolellm.making.instruct.grounding import Grounding, make_grounding_check
from rolellm.making.instruct.segments import build_segments
from rolellm.making.settings import LEAST_FOUND

QUEEN = Profile("Queen", "en", description="You love red roses.", catchphrases=("Off goes your head!",))
SCENE = "King: Gardener Nine ate three of the tarts.\nQueen: Bring him here at a quarter past four!"
Best = Callable[[Profile, str, str], Grounding]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param("Gardener Nine ate three tarts!", None, id="said there"),
        pytest.param("He ate 3 of my tarts, the third with jam!", None, id="number in another form"),
        pytest.param("Red roses I love, and tarts!", None, id="said in the profile"),
        pytest.param(
            "My tarts! That was the wicked Weasel!", "names in neither segment nor profile: Weasel", id="name"
        ),
        pytest.param("He ate seven tarts!", "numbers in neither segment nor profile: seven", id="number"),
        pytest.param(
            "Justice demands unwavering commitment, prudence, discernment, steadfast leadership.",
            "content words are in segment or profile",
            id="nothing in common",
        ),
    ],
)
def test_what_is_not_there_is_told(answer: str, reason: str | None) -> None:
    found = make_grounding_check(QUEEN)(SCENE)("Queen, who ate?", answer).reason(LEAST_FOUND)
    assert found is None if reason is None else reason in str(found)


def test_chinese_words_are_found_however_they_are_cut() -> None:
    monk = Profile("鲁智深", "zh", description="你提一根禅杖。")
    check = make_grounding_check(monk)("柳老汉：酒还有半壶，肉却是一片也没有了。\n鲁智深：切三斤牛肉！")
    assert check("鲁智深，酒还剩多少？", "半壶酒，不够洒家润喉！").reason(LEAST_FOUND) is None
    assert check("鲁智深，你要了多少肉？", "五斤牛肉！").numbers == ("五",)
    assert check("鲁智深，是谁说的？", "张飞说的！").names == ("张飞",)


@pytest.fixture(scope="module")
def best() -> Best:
    """Checks a pair against each chunk of a role's script; the kindest counts, as nobody says which it is from."""
    checks: dict[str, list[Any]] = {}

    def check(character: Profile, question: str, answer: str) -> Grounding:
        if character.role not in checks:
            made = build_segments(character, TokenCounter().count, chunk_tokens=1000, overlap_tokens=100)
            of = make_grounding_check(character)
            checks[character.role] = [of(item.text) for item in made if item.kind == "script"]
        found = [item(question, answer) for item in checks[character.role]]
        return max(found, key=lambda item: (not item.names and not item.numbers, item.score or 0))

    return check


def test_figures_of_the_docs_on_the_sample(
    root: Path, characters: dict[str, Profile], script_pairs: dict[str, list[dict[str, Any]]], best: Best
) -> None:
    """Right pairs that are dropped, and pairs of another role's script that are caught."""
    right = wrong = dropped = caught = 0
    for role, pairs in script_pairs.items():
        strangers = [
            other for other in characters.values() if other.role != role and other.language == characters[role].language
        ]
        for pair in pairs:
            question, answer = pair["instruction"], pair["answer"]
            right += 1
            dropped += best(characters[role], question, answer).reason(LEAST_FOUND) is not None
            for other in strangers:
                wrong += 1
                caught += best(other, question.replace(role, other.role), answer).reason(LEAST_FOUND) is not None
    assert right == wrong == 60
    assert f"{dropped} of {right}" in (root / "dev/measurements.md").read_text(encoding="utf-8")
    assert f"{caught} of {wrong}" in (root / "dev/measurements.md").read_text(encoding="utf-8")
    assert dropped <= 3
    assert caught >= 40


@pytest.mark.slow
@pytest.mark.realdata
def test_figures_of_the_docs_on_coriolanus(real_release: Path, root: Path, best: Best) -> None:
    """The release's own script-based answers of Coriolanus, against the play; and those of all other roles."""
    turns = []
    for block in (real_release.parent / "scripts/coriolanus.txt").read_text(encoding="utf-8").split("\n\n"):
        name, _, said = block.strip().partition(":\n")
        if said:
            speaker = "Coriolanus" if name in ("CORIOLANUS", "MARCIUS") else name.title()
            turns.append(Turn(speaker, " ".join(said.split())))
    description = json.loads((real_release / "profiles-eng/desc.json").read_text(encoding="utf-8"))["Coriolanus"]
    hero = Profile("Coriolanus", "en", tuple(turns), description=description, aliases=("Marcius",))
    test = real_release / "rolebench-eng/instruction-generalization/role_specific/test.jsonl"
    rows = [json.loads(line) for line in test.read_text(encoding="utf-8").splitlines()]
    based = [row for row in rows if row["type"][0] == "script_based"]
    his = [row for row in based if row["role"] == "Coriolanus"]
    others = [row for row in based if row["role"] != "Coriolanus"][::15]

    def turned_down(row: dict[str, Any]) -> bool:
        question = row["question"].replace(row["role"], "Coriolanus")
        return best(hero, question, row["generated"][0]).reason(LEAST_FOUND) is not None

    docs = (root / "dev/measurements.md").read_text(encoding="utf-8")
    dropped, caught = sum(map(turned_down, his)), sum(map(turned_down, others))
    assert f"{dropped} of {len(his)} of Coriolanus" in docs
    assert f"{caught} of {len(others)} of other roles" in docs
    assert dropped == 0
    assert caught > 0.6 * len(others)
