"""A profile from turns: excerpts, phrases, the description, and the folder that it is kept in."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.characters.folder import read_character, write_character
from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.fingerprint import hash_file
from rolellm.core.records import Language, Profile, Turn
from rolellm.llm.llm import LLM
from rolellm.llm.model import Reply, Request, RunOptions, UnacceptableError, Usage
from rolellm.llm.tokens import TokenCounter
from rolellm.making.profile.build import (
    OFFERED,
    BuildProfile,
    Phrase,
    accept_picks,
    build_folder,
    find_repeated_phrases,
    get_notes,
    hash_result,
    list_defects,
)
from rolellm.making.profile.excerpts import choose_excerpts
from rolellm.making.profile.portrait import collect_names
from rolellm.making.profile.start import start_sheet
from rolellm.making.settings import BuildSettings
from rolellm.runs import Run, run_step

from .conftest import NOT_SECOND, SECOND, THIRD, scripted

QUIET = RunOptions(show_progress=False)


def built(
    folder: Path, model: Any, start: Profile, settings: BuildSettings | None = None, options: RunOptions = QUIET
) -> Profile:
    llm = LLM.of(model)
    llm.options = options
    return run_step(BuildProfile(start, settings or BuildSettings()), llm, folder).result


def test_third_person_then_second_then_catchphrases(tmp_path: Path, keeper: Profile) -> None:
    model = scripted()
    found = built(tmp_path, model, keeper)
    assert found.background is not None and found.background.startswith("A lighthouse keeper who")
    assert found.description is not None and found.description.startswith("You are a lighthouse keeper")
    assert found.catchphrases == ("Count the steps, child!",)
    assert [request.tag for request in model.asked] == ["profile/third", "profile/second", "profile/catchphrases"]
    (third,) = model.prompts("third")
    assert "Rose: Aunt Ada, is it late?\nAda: Count the steps, child! Nine past eight." in third
    assert "Brom: Ada never smiles." in third and "(The top of a tower. Ada counts.)" in third
    assert found.background in model.prompts("second")[0]
    assert (found.turns, found.role, found.aliases) == (keeper.turns, "Ada", ("Keeper",))
    receipt = found.made["build"]
    assert receipt["result"] == hash_result(found)


def test_a_reply_with_a_defect_is_sent_back_with_what_is_wrong(tmp_path: Path, keeper: Profile) -> None:
    third, second = THIRD, SECOND
    poor = "As an AI language model, I cannot know this person at all, not even a little."
    model = scripted(
        third=[poor, "She counts.", f"# Ada\n\n{third}"],
        second=[third, second],
        catchphrases=[{"chosen": [99]}, "none of them", {"chosen": []}],
    )
    found = built(tmp_path, model, keeper)
    assert (found.background, found.description, found.catchphrases) == (third, second, ())
    assert len(model.asked) == 8
    first, again, last = model.asked[:3]
    assert again.messages[:2] == last.messages[:2] == first.messages
    assert [message.role for message in last.messages] == ["system", "user", "assistant", "user"]
    assert again.messages[2].content == poor and "says that it is an AI" in again.messages[3].content
    assert last.messages[2].content == "She counts." and "It has 2 words" in last.messages[3].content
    assert found.made["build"]["defects"] == {}


def test_the_best_of_several_is_kept_and_says_what_is_wrong_with_it(tmp_path: Path, keeper: Profile) -> None:
    whole = SECOND.replace(". ", "; ").removesuffix(".")
    two = f"She is one, Ada Fenn, she said; {whole}; I know it."
    one = f"{whole}; I know it."
    model = scripted(second=[two, one, two, one])
    found = built(tmp_path, model, keeper)
    assert found.description == one
    assert found.made["build"]["defects"] == {"second": [NOT_SECOND]}
    assert built(tmp_path, scripted(second=[two, one, two, one]), keeper) == found


def test_without_a_second_person_the_third_stays(tmp_path: Path, keeper: Profile) -> None:
    found = built(tmp_path, scripted(second="I'm sorry, but I can't help with that request."), keeper)
    assert found.description == found.background
    (defect,) = found.made["build"]["defects"]["second"]
    assert "still in the third person" in defect
    assert found.catchphrases == ("Count the steps, child!",)


def test_when_nothing_is_usable_the_error_says_why_and_what_to_do(tmp_path: Path, keeper: Profile) -> None:
    model = scripted(third=["Ada.", "Of Ada nothing is known."])
    with pytest.raises(
        ModelError,
        match=r"third person of Ada after 2 attempts of scripted: It has 6 words.*before that: It has 2 words",
    ) as caught:
        built(tmp_path, model, keeper, options=replace(QUIET, max_attempts=2))
    assert "retry_failed=true" in str(caught.value) and "--description" in str(caught.value)
    assert (tmp_path / "failed.jsonl").is_file()


def test_a_card_is_described_by_its_own_description(tmp_path: Path) -> None:
    card = Profile("Ada", "en", description="{{char}} Ada: [Personality(stern + {0.__class__})]", made={"card": {}})
    model = scripted()
    anew = BuildSettings(rewrite=True)
    found = built(tmp_path, model, card, anew)
    assert "[Personality(stern + {0.__class__})]" in model.prompts("third")[0]
    assert found.description is not None and found.description.startswith("You are")
    assert found.made["card"] == {}
    # Built again, it is the card's own words that count, not what was made of them.
    assert get_notes(found) == card.description
    assert built(tmp_path, scripted(), found, anew) == found


# --- beginnings


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


# --- excerpts


COUNT = TokenCounter().count


def excerpts(turns: list[Turn], budget: int = 6000, role: str = "Ann") -> tuple[str, dict[str, int]]:
    character = Profile(role, "en", tuple(turns))
    return choose_excerpts(character, collect_names(character), budget, TokenCounter())


def test_a_short_script_is_shown_whole_but_for_what_is_not_about_the_role() -> None:
    turns = [
        Turn("scene", "A kitchen. Ann cooks.", "direction"),
        Turn("Bob", "What is it?"),
        Turn("Ann", "Soup."),
        Turn("Cat", "I saw a bird."),
        Turn("Bob", "Did it sing?"),
        Turn("Cat", "Ask Ann, she knows."),
    ]
    text, counts = excerpts(turns)
    assert text == "(A kitchen. Ann cooks.)\nBob: What is it?\nAnn: Soup.\n\nCat: Ask Ann, she knows."
    assert counts == 1


def test_a_script_of_one_scene_is_spread_over_as_well() -> None:
    turns = [Turn("Ann", f"Line {number} of very many lines.") for number in range(20_000)]
    text, _ = excerpts(turns, budget=1000)
    numbers = [int(line.split()[2]) for line in text.splitlines() if line]
    assert numbers == sorted(numbers)
    assert numbers[0] < 3000 and numbers[-1] > 17_000
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    assert max(gaps) < 2500


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Ann", "Bob", "scene"]),
            st.text(min_size=1, max_size=80).filter(str.strip),
            st.integers(0, 3),
        ),
        max_size=40,
    ),
    st.integers(20, 400),
)
def test_any_script_keeps_to_the_budget(found: list[tuple[str, str, int]], budget: int) -> None:
    turns = [
        Turn(speaker, text, "direction" if speaker == "scene" else "speech", scene)
        for speaker, text, scene in sorted(found, key=lambda item: item[2])
    ]
    shown = excerpts(turns, budget)
    assert COUNT(shown[0]) <= budget
    assert shown == excerpts(turns, budget)


# --- catchphrases


def character(lines: list[tuple[str, str]], language: Language = "en", role: str = "Ann") -> Profile:
    return Profile(role, language, tuple(Turn(speaker, text) for speaker, text in lines))


def found(phrases: list[Phrase]) -> dict[str, tuple[int, int]]:
    return {phrase.text: (phrase.lines, phrase.others) for phrase in phrases}


def test_the_score_is_the_formula_of_the_module() -> None:
    lines = [("Ann", "Bazinga! Quite."), ("Ann", "Bazinga!"), ("Bob", "Bazinga?"), ("Bob", "Never, friend.")]
    (phrase,) = [item for item in find_repeated_phrases(character(lines)) if item.text == "Bazinga!"]
    # Others say "Bazinga", "Never, friend" with its end, and "Never".
    y, o, n, m = 2, 1, 3, 4
    a, total = y + o, n + m
    delta = math.log((y + a) / (n + total - y - a)) - math.log((o + a) / (m + total - o - a))
    assert phrase.score == pytest.approx(delta / math.sqrt(1 / (y + a) + 1 / (o + a)))
    assert (phrase.lines, phrase.others) == (2, 1)


TIMBERS = [("Ann", "Shiver my old timbers!")] * 3 + [("Bob", "What now, sir?")] * 3
APART = [("Ann", f"My old timbers, {word}.") for word in ("eh", "so", "oh", "hm", "aha")]
COLD = [("Ann", f"I am {word}.") for word in ("cold", "old", "tall", "late")] + [("Bob", "Who asks for that?")]
PLUMS = [("Ann", "Sour grapes!")] * 2 + [("Ann", "Sweet plums!")] * 3
KEMP = [("Ann", "Doctor Kemp! Up we go!")] * 2 + [("Doctor Kemp", "What?")]
SHIVERED = {"Shiver my old timbers!": (3, 0), "My old timbers": (8, 0)}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(TIMBERS, {"Shiver my old timbers!": (3, 0)}, id="parts go into the longer phrase"),
        pytest.param([*TIMBERS, *APART], SHIVERED, id="unless they live apart"),
        pytest.param(COLD, {}, id="function words are no phrase"),
        pytest.param(KEMP, {"Up we go!": (2, 0)}, id="names of speakers are no phrases"),
        pytest.param(PLUMS, {"Sweet plums!": (3, 0), "Sour grapes!": (2, 0)}, id="alone, ranked by counts"),
    ],
)
def test_phrases(lines: list[tuple[str, str]], expected: dict[str, tuple[int, int]]) -> None:
    phrases = found(find_repeated_phrases(character(lines)))
    assert phrases == expected
    assert "Sweet plums!" not in expected or list(phrases) == list(expected)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.sampled_from(["Ann", "Bob"]), st.text("abc !,.?'\"(我你好，。！", min_size=1, max_size=40))),
    st.sampled_from(["en", "zh"]),
)
def test_any_lines(lines: list[tuple[str, str]], language: Language) -> None:
    phrases = find_repeated_phrases(character(lines, language))
    assert len({phrase.text for phrase in phrases}) == len(phrases) <= OFFERED
    own = [" ".join(text.split()) for speaker, text in lines if speaker == "Ann"]
    for phrase in phrases:
        assert phrase.text.strip() == phrase.text != ""
        assert any(phrase.text.rstrip("!?！") in line for line in own)


PHRASES = [Phrase("Count the steps!", 3, 0, 2.0), Phrase("{role} {most}", 2, 1, 1.0), Phrase("Nine.", 1, 0, 0.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"chosen": [3, 1]}', ("Nine.", "Count the steps!"), id="in its order"),
        pytest.param('{"chosen": [4, 3, 0]}', ("Nine.",), id="some that are not on the list"),
        pytest.param('{"chosen": [4]}', None, id="none of the list"),
    ],
)
def test_picks_by_number(text: str, expected: tuple[str, ...] | None) -> None:
    accept, reply = accept_picks(PHRASES, 2), Reply(text, "stop", Usage(), "m", "e", {})
    if expected is None:
        with pytest.raises(UnacceptableError, match="on the list, which has 3"):
            accept(Request(()), reply)
    else:
        assert accept(Request(()), reply) == expected


# --- the folder


def quiet(model: Any) -> LLM:
    llm = LLM.of(model)
    llm.options = RunOptions(show_progress=False, max_attempts=1)
    return llm


def run(
    start: Profile, folder: Path, model: Any, settings: BuildSettings | None = None, **options: Any
) -> Run[Profile]:
    return build_folder(BuildProfile(start, settings or BuildSettings(), folder), quiet(model), **options)


def change(folder: Path, **values: Any) -> None:
    path = folder / "profile.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def test_what_has_a_defect_is_noted(tmp_path: Path, keeper: Profile) -> None:
    built = run(keeper, tmp_path, scripted(second=f"## Ada\n\n{SECOND.replace('. ', '; ')[:-1]}; I know it."))
    assert built.summary["notes"] == [f"description, kept with a defect: {NOT_SECOND}"]
    (defect,) = list_defects(read_character(tmp_path))["description"]
    assert built.manifest["made"]["build"]["defects"] == {"second": [defect]}
    # They are the model's; what a person wrote has none.
    change(tmp_path, description="You are my own Ada.")
    assert list_defects(read_character(tmp_path)) == {}


def test_what_a_person_changed_is_not_lost(tmp_path: Path, keeper: Profile) -> None:
    run(keeper, tmp_path, scripted())
    change(tmp_path, description="You are my own Ada.")
    with pytest.raises(SettingsError, match="holds another character, Ada"):
        run(replace(keeper, role="Rose"), tmp_path, scripted())
    with pytest.raises(SettingsError, match="changed by hand"):
        run(keeper, tmp_path, scripted())
    assert read_character(tmp_path).description == "You are my own Ada."
    assert run(keeper, tmp_path, scripted(), overwrite=True).result.description != "You are my own Ada."


def test_a_card_is_completed_where_it_is(tmp_path: Path, keeper: Profile) -> None:
    card = replace(keeper, description="Ada is stern.", made={"card": {"spec": "v2"}})
    write_character(card, tmp_path)
    with pytest.raises(SettingsError, match=f"rolellm role build {tmp_path}"):
        run(card, tmp_path, scripted())
    built = run(read_character(tmp_path), tmp_path, scripted(), card=tmp_path)
    assert built.result.made["card"] == {"spec": "v2"} and built.result.description == "Ada is stern."
    # Again, when it is no longer new: no model has written it, until one is asked to.
    assert run(read_character(tmp_path), tmp_path, scripted(), card=tmp_path).result.description == "Ada is stern."
    rewritten = run(read_character(tmp_path), tmp_path, scripted(), BuildSettings(rewrite=True), card=tmp_path)
    assert rewritten.result.description != "Ada is stern."


def test_a_card_comes_along(tmp_path: Path, keeper: Profile) -> None:
    write_character(replace(keeper, made={"card": {}}), tmp_path / "card")
    (tmp_path / "card" / "card.json").write_text("{}", encoding="utf-8")
    run(read_character(tmp_path / "card"), tmp_path / "out", scripted(), card=tmp_path / "card")
    assert (tmp_path / "out" / "card.json").read_text(encoding="utf-8") == "{}"
    assert not (tmp_path / "out" / "card.png").exists()
