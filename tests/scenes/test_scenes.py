"""Scenes: what a character sees, who speaks next, and playing to the end; CoSER's scores."""

import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError, SettingsError, StoppedShortError
from rolellm.core.fingerprint import hash_json
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request, RunOptions
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.fences import read_fences
from rolellm.playing.settings import PlaySettings
from rolellm.playing.thoughts import strip_inner_thoughts
from rolellm.preferences import judge_branches, prefer
from rolellm.runs import Run, run_step
from rolellm.scenes.coser import (
    compare_scores,
    compute_rouge_l,
    read_coser_rows,
    repeat_last_line,
    rescore,
    swap_profiles,
)
from rolellm.scenes.critique import CritiqueScenes
from rolellm.scenes.names import find_only_named, keep_own_lines
from rolellm.scenes.play import PlayScenes, ScenesResult, play_scene
from rolellm.scenes.scene import ENVIRONMENT, Scene, SceneCharacter, Secret, read_scene
from rolellm.scenes.visibility import SceneTurn, build_talk, find_lapses

from ..commands import Command
from ..forking import Forking

NAMES = ("Ada", "Brom", "Cleo", "Dora")


def scene(**more: Any) -> Scene:
    characters = tuple(SceneCharacter(name=name, description=f"{name} keeps the lamp.") for name in NAMES[:3])
    return Scene(**{"setting": "A tower.", "characters": characters, "turns": 6, "title": "lamp"} | more)


def llm_of(answer: Callable[[Request], Any]) -> LLM:
    llm = LLM.of(ScriptedModel(answer, rules_hash="tests"))
    llm.options = RunOptions(show_progress=False, max_attempts=2)
    return llm


def play(folder: Path, played: Scene, answer: Callable[[Request], Any], **more: Any) -> Run[ScenesResult]:
    return run_step(PlayScenes([played], PlaySettings(), **more), llm_of(answer), folder)


def speak(request: Request) -> str:
    unique = hash_json([request.tag, *(message.content for message in request.messages)])[:6]
    return f"[thought {unique}] (nods) word {unique}"


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        pytest.param("[secret] I see.", "I see.", id="thought"),
        pytest.param("I see. [secret", "I see.", id="cut off in a thought"),
        pytest.param("[a [b [secret] c] d] Yes.", "Yes.", id="nested"),
        pytest.param("(smiles [secret] at him) Yes.", "(smiles  at him) Yes.", id="within an action"),
        pytest.param("<role_thinking>secret</role_thinking>Yes.", "Yes.", id="tag"),
        pytest.param("<think>\nsecret", "", id="tag without an end"),
        pytest.param("【secret】好。", "好。", id="Chinese"),
        pytest.param("[one\nsecret]\n\n\nTwo.", "Two.", id="over lines"),
    ],
)
def test_others_do_not_see_thoughts(text: str, visible: str) -> None:
    assert strip_inner_thoughts(text) == visible


@st.composite
def played_scenes(draw: st.DrawFn) -> tuple[Scene, list[SceneTurn]]:
    spans = st.sampled_from(["", "1-3", "2-", "1, 4-", "3-5, 8-", "9-"])
    characters = []
    for name in NAMES:
        characters.append(SceneCharacter(name=name, description="x", present=draw(spans)))
    stage = scene(characters=tuple(characters), environment=True, turns=12)
    turns = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        present = tuple(stage.list_present(number))
        speaker = draw(st.sampled_from([*present, ENVIRONMENT]))
        turns.append(SceneTurn(number, speaker, f"[secret{number}] (acts) said{number}", present))
    return stage, turns


@given(played_scenes())
def test_a_character_sees_what_it_witnessed_and_no_thought_of_others(played: tuple[Scene, list[SceneTurn]]) -> None:
    stage, turns = played
    for character in stage.characters:
        talk = build_talk(stage, turns, character.name)
        text = "\n".join(message.content for message in talk) + "\n"
        for turn in turns:
            is_own = turn.speaker == character.name
            is_there = is_own or character.is_present(turn.turn)
            assert (f"said{turn.turn}\n" in text) == is_there
            assert (f"secret{turn.turn}]" in text) == is_own
        roles = [message.role for message in talk]
        assert roles[-1] == "user"
        assert all(first != second for first, second in pairwise(roles))


def test_a_scene_goes_in_turn_to_its_end_and_a_second_run_asks_nothing(tmp_path: Path) -> None:
    stage = scene(opening=({"Brom": "[hm] Good evening."},))
    first = play(tmp_path, stage, speak)
    turns = first.result.scenes[0].turns
    assert [turn.speaker for turn in turns] == ["Brom", "Ada", "Cleo", "Brom", "Ada", "Cleo"]
    assert first.result.scenes[0].ended == "turns"
    again = play(tmp_path, stage, speak)
    assert again.result.scenes[0].turns == turns
    assert again.manifest["spent"]["calls"] == 0


@pytest.mark.parametrize(
    ("answer", "speakers", "ended", "note"),
    [
        pytest.param("Next speaker: **Cleo**", ["Cleo", "Ada", "Cleo", "Ada"], "turns", "", id="a name"),
        pytest.param("<END>", ["Ada", "Brom", "Ada"], "model", "", id="the end, from min_turns on"),
        pytest.param("Hm.", ["Ada", "Brom", "Cleo", "Ada"], "turns", "named nobody", id="nobody, so in turn"),
    ],
)
def test_a_model_chooses_the_speakers(tmp_path: Path, answer: str, speakers: list[str], ended: str, note: str) -> None:
    def reply(request: Request) -> str:
        if not request.tag.endswith("/speaker"):
            return speak(request)
        candidates = request.messages[0].content.partition("out of: ")[2]
        is_turn_of = {"Cleo": "Cleo" in candidates, "<END>": request.tag.split("/")[2] == "4", "Hm.": True}
        return answer if is_turn_of.get(answer[-6:].strip("* "), is_turn_of.get(answer)) else candidates.split(",")[0]

    stage = scene(speakers="model", turns=4, min_turns=3)
    run = play(tmp_path, stage, reply)
    played = run.result.scenes[0]
    assert [turn.speaker for turn in played.turns] == speakers
    assert (played.ended, run.failed) == (ended, 0)
    assert note in played.turns[-1].note


@given(played_scenes(), st.data())
def test_knowing_what_one_did_not_witness_is_found(played: tuple[Scene, list[SceneTurn]], data: st.DataObject) -> None:
    stage, turns = played
    number = data.draw(st.integers(1, len(turns)))
    speaker = turns[number - 1].speaker
    secret = Secret(words="the third stone", known_by=(speaker,) if data.draw(st.booleans()) else ("Ada",))
    said = replace(turns[number - 1], text="It is under THE THIRD stone.")
    lapses = find_lapses(replace(stage, secrets=(secret,)), [*turns[: number - 1], said, *turns[number:]])
    assert [lapse.turn for lapse in lapses] == [number] * (speaker not in (*secret.known_by, ENVIRONMENT))


def test_whoever_heard_a_secret_may_know_it_and_who_was_away_may_not() -> None:
    stage = scene(secrets=(Secret(words="third stone", known_by=("Ada",)),))
    lines = [("Ada", "Under the third stone.", ("Ada", "Brom")), ("Brom", "The third stone?", NAMES)]
    lines += [("Ada", "[The third stone.] No.", ("Ada", "Dora")), ("Dora", "Third stone!", NAMES)]
    turns = [SceneTurn(index, *line[:2], tuple(line[2])) for index, line in enumerate(lines, start=1)]
    turns[1] = replace(turns[1], present=("Ada", "Brom"))
    assert [lapse.name for lapse in find_lapses(stage, turns)] == ["Dora"]


def test_a_scene_leaves_rows_to_train_on_with_what_each_character_witnessed(tmp_path: Path) -> None:
    characters = (*scene().characters[:2], replace(scene().characters[2], present="4-"))
    run = play(tmp_path, scene(characters=characters), speak)
    rows = {row["role"]: row["messages"] for row in run.records("dialogues.jsonl")}
    turns = run.result.scenes[0].turns
    assert set(rows) == {"Ada", "Brom", "Cleo"}
    for name, messages in rows.items():
        own_turns = [turn.text for turn in turns if turn.speaker == name]
        assert [message["content"] for message in messages if message["role"] == "assistant"] == own_turns
        assert [message["role"] for message in messages[:3]] == ["system", "user", "assistant"]
        assert messages[-1]["role"] == "assistant"
    assert "word" not in rows["Cleo"][1]["content"].split("comes in", maxsplit=1)[0]


def test_who_was_named_last_is_next(tmp_path: Path) -> None:
    answers = {"Ada": "Cleo, come.", "Cleo": "I come, Ada. Where is Brom? In the Bromide!", "Brom": "Here."}
    stage = scene(speakers="named", turns=5, opening=({"Brom": "Ada?"},), first="Ada")
    played = play(tmp_path, stage, lambda request: answers[request.tag.rpartition("/")[2]])
    assert [turn.speaker for turn in played.result.scenes[0].turns] == ["Brom", "Ada", "Cleo", "Brom", "Ada"]


@pytest.mark.parametrize("speakers", ["named", "model"])
def test_a_part_of_a_name_names_a_speaker(tmp_path: Path, speakers: Any) -> None:
    characters = tuple(replace(each, name=f"{each.name} Quill") for each in scene().characters)
    stage = scene(characters=characters, speakers=speakers, turns=2, first="Ada Quill")
    answers = {
        "Ada Quill": "Cleo, also you!",
        "Cleo Quill": "Ask brom quill.",
        "Brom Quill": "I?",
        "speaker": "**Cleo**",
    }
    played = play(tmp_path, stage, lambda request: answers[request.tag.rpartition("/")[2]])
    assert [turn.speaker for turn in played.result.scenes[0].turns] == ["Ada Quill", "Cleo Quill"]


def test_words_put_into_anothers_mouth_are_cut_and_said(tmp_path: Path) -> None:
    run = play(tmp_path, scene(turns=2), lambda _: "Come in.\nBrom: Thank you!\nAda: Sit.")
    assert [turn.text for turn in run.result.scenes[0].turns] == ["Come in.", "Come in.\nThank you!"]
    assert "spoke for Brom" in run.result.notes()[0]


def test_a_turn_that_repeats_an_earlier_one_is_asked_for_once_more(tmp_path: Path) -> None:
    answers = {
        "Brom": ["(nods) [hm] Good evening!", "[I wait.]"],
        "Cleo": ["(nods) Good Evening", "Brom: The oil is gone."],
        "Ada": ["The oil is gone. [So.]", "Ada does or says something new. It is late."],
    }

    def reply(request: Request) -> str:
        is_again = "something new" in request.messages[-1].content
        return answers[request.tag.rpartition("/")[2]][is_again]

    stage = scene(opening=({"Ada": "(nods) Good evening."},), turns=4)
    run = play(tmp_path, stage, reply)
    turns = run.result.scenes[0].turns
    # A second answer that nobody hears is no better, nor is what it was asked by.
    assert [turn.text for turn in turns[1:]] == [
        "(nods) [hm] Good evening!",
        "The oil is gone.",
        "The oil is gone. [So.]",
    ]
    notes = ["repeats an earlier turn", "spoke for Brom", "repeats an earlier turn"]
    assert [turn.note for turn in turns[1:]] == notes
    assert run.manifest["spent"]["calls"] == 6


@pytest.mark.parametrize(
    ("text", "own", "note"),
    [
        pytest.param(
            "Marta Quill: Sit.\nDobbs: Thank you.", "Sit.", "spoke for Constable Dobbs", id="a part of a name"
        ),
        pytest.param("Mrs. Quill: (sits) I had it.", "(sits) I had it.", "", id="a title"),
        pytest.param("Dobbs [nods]: I see.", "[nods] I see.", "spoke for Constable Dobbs", id="headed by another"),
        pytest.param("**Marta Quill:** Aye", "Aye", "", id="bold"),
        pytest.param("I told Dobbs: go.\nThe key: lost.", "I told Dobbs: go.\nThe key: lost.", "", id="speech"),
        pytest.param("Marta: hers.", "Marta: hers.", "", id="a word of two names"),
        pytest.param("来。Dobbs：好。", "来。", "spoke for Constable Dobbs", id="within a line of Chinese"),
        pytest.param("Dobbs:", "Dobbs:", "spoke for Constable Dobbs", id="nothing else"),
    ],
)
def test_a_turn_written_like_a_play_has_the_speakers_own_lines(text: str, own: str, note: str) -> None:
    names = ["Marta Quill", "Constable Dobbs", "Marta Holt"]
    assert keep_own_lines(text, "Marta Quill", names) == (own, note)


def test_each_of_the_cast_has_its_own_model_and_a_failed_call_ends_the_scene_with_what_was_played(
    tmp_path: Path,
) -> None:
    cast = {"Brom": llm_of(lambda _: "Brom's own model.")}
    played = play(tmp_path / "whole", scene(), speak, cast=cast).result.scenes[0]
    assert {turn.text for turn in played.turns if turn.speaker == "Brom"} == {"Brom's own model."}
    silent = {"Cleo": llm_of(lambda _: "")}
    broken = play(tmp_path / "broken", scene(), speak, cast=silent).result
    assert [turn.speaker for turn in broken.scenes[0].turns] == ["Ada", "Brom"]
    assert "ended early" in broken.notes()[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            {"characters": [{"name": "Ada"}]}, "neither a card nor a description", id="nothing of a character"
        ),
        pytest.param({"characters": [{"name": "Ada", "description": "x"}] * 2}, "two characters", id="two of one name"),
        pytest.param({"opening": [{"Aba": "Hi."}]}, "did you mean Ada", id="opening line of nobody"),
        pytest.param({"first": "Zed"}, "not in the scene", id="begun by nobody"),
        pytest.param({"turns": 0}, "turns", id="no turns"),
        pytest.param({"turns": 1, "opening": [{"Ada": "Hi."}]}, "raise `turns`", id="an opening that takes all turns"),
        pytest.param({"characters": []}, "must have at least 1 item", id="nobody"),
        pytest.param(
            {"characters": [{"name": "Ada", "description": "x", "present": "later"}]}, "write turns", id="present"
        ),
        pytest.param(
            {"characters": [{"name": "Ada", "description": "x", "present": "4-2"}]}, "no turns 4-2", id="backward"
        ),
        pytest.param(
            {"characters": [{"name": "Ada", "description": "x", "present": "1-3"}]}, "`turns: 3`", id="an empty stage"
        ),
        pytest.param(
            {"characters": [{"name": "Ada", "description": "x", "present": "2-"}], "opening": [{"Ada": "Hi."}]},
            "speaks at turn 1 but is not there",
            id="an opening line of somebody who is away",
        ),
        pytest.param({"opening": ["Hello."]}, "Hello. is not in the scene", id="an opening line without a speaker"),
        pytest.param({"seting": "x"}, "seting", id="unknown key"),
    ],
)
def test_a_scene_that_cannot_be_played_is_refused_in_words(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    values = {"setting": "A tower.", "characters": [{"name": "Ada", "description": "Keeps the lamp."}]} | change
    file = tmp_path / "scene.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(SettingsError, match=words):
        read_scene(file)


def test_a_turn_may_be_a_number_and_an_opening_line_a_text(tmp_path: Path) -> None:
    lines = ["setting: x", "characters:", "- {name: 王五, description: x, present: 1}", "- {name: B, description: x}"]
    file = tmp_path / "scene.yaml"
    file.write_text("\n".join([*lines, "opening:", "- 王五：来：吧", "- B: (nods)", '- "B: a: b"']), encoding="utf-8")
    played = read_scene(file)
    assert played.opening_lines == [("王五", "来：吧"), ("B", "(nods)"), ("B", "a: b")]
    assert [played.list_present(turn) for turn in (1, 2)] == [["王五", "B"], ["B"]]


def test_the_cast_has_to_be_in_the_scene(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="in no scene"):
        play(tmp_path, scene(), speak, cast={"Zed": llm_of(speak)})


@pytest.mark.parametrize(
    ("card", "words"),
    [
        pytest.param("gone.json", "the card of Ada: no role", id="missing"),
        pytest.param("bare.json", "the card of Ada: .*role card CARD --out FOLDER --set role=NAME", id="nameless"),
    ],
)
def test_a_card_that_is_of_no_use_is_reported_with_its_character(tmp_path: Path, card: str, words: str) -> None:
    (tmp_path / "bare.json").write_text(json.dumps({"spec": "chara_card_v2", "data": {"name": ""}}), encoding="utf-8")
    file = tmp_path / "scene.yaml"
    file.write_text(json.dumps({"setting": "x", "characters": [{"name": "Ada", "card": card}]}), encoding="utf-8")
    with pytest.raises(SettingsError, match=words):
        play(tmp_path / "run", read_scene(file), speak)


def test_a_person_stops_in_the_middle_and_goes_on_and_sees_no_thought_of_others(tmp_path: Path) -> None:
    # Whom a person quotes is the person's choice.
    quoted = "Cleo: good evening, you said.\nAda: nothing."
    lines = iter([" ", quoted, "", signal.SIGINT, "Farewell."])

    def read_line(prompt: str) -> str:
        line = next(lines)
        if isinstance(line, str):
            return line
        signal.raise_signal(line)
        return prompt

    shown: list[SceneTurn] = []
    options: Any = {"me": "Brom", "show": shown.append, "read_line": read_line, "out": tmp_path}
    with pytest.raises(StoppedShortError, match="asked to stop"):
        play_scene(scene(), llm_of(speak), **options)
    shown.clear()
    play_scene(scene(), llm_of(speak), **options)
    assert [turn.text for turn in shown if turn.speaker == "Brom"] == [quoted, "Farewell."]
    assert len(shown) == 6 and "thought" not in str(shown)
    with pytest.raises(SettingsError, match="holds the scene lamp"):
        play_scene(scene(title="oil"), llm_of(speak), out=tmp_path)
    with pytest.raises(SettingsError, match=r"Zed is not in the scene.*Ada, Brom, Cleo"):
        play_scene(scene(), llm_of(speak), me="Zed")


def test_a_person_is_shown_who_came_and_left_and_nothing_of_the_time_away(tmp_path: Path) -> None:
    spans = ["", "1-2, 5-", "3", "5-"]
    characters = []
    for name, span in zip(NAMES, spans, strict=True):
        characters.append(SceneCharacter(name=name, description="x", present=span))
    shown: list[str] = []
    options: Any = {"me": "Brom", "read_line": lambda prompt: shown.append(prompt) or "Here I am."}
    played = scene(characters=tuple(characters), turns=6)
    play_scene(played, llm_of(speak), show=lambda turn: shown.append(turn.speaker or turn.text), **options)
    assert shown == ["Ada", "Brom> ", "Brom", "(Dora comes in.)", "Dora", "Brom> ", "Brom"]


def coser_row(**more: Any) -> dict[str, Any]:
    row = {
        "book": "Lamps",
        "scenario": "A tower at night.",
        "topic": "The lamp",
        "key_characters": [{"name": "Ada", "thought": "It must burn."}],
        "dialogues": [
            {"character": "Ada", "message": "[It is late.] (trims the wick) It burns. Does it not?"},
            {"character": ENVIRONMENT, "message": "The wind rises."},
        ],
        "speaking_characters_w_env": ["Ada", "Brom"],
        "major_characters": ["Ada", "Brom"],
        "plot": {"i_p": 3, "summary": "A storm comes.", "key_characters": [{"name": "Ada", "description": "Keeper."}]},
        "character_profiles": {"Ada": "She keeps the lamp.", "Brom": "He rows."},
        "i_p": 0,
        "i_c": 1,
    }
    return row | more


def test_a_row_of_coser_is_played_judged_and_scored_again_from_its_file(tmp_path: Path) -> None:
    source = tmp_path / "test_set.json"
    source.write_text(json.dumps([coser_row()]), encoding="utf-8")
    rows = read_coser_rows(source)

    def act(request: Request) -> str:
        if request.tag.endswith("/speaker"):
            return "Brom" if "Brom" in request.messages[0].content.partition("out of: ")[2] else "Ada"
        return f"{speak(request)}\nBrom: I agree."

    def judge(request: Request) -> Any:
        dimension = request.tag.rpartition("/")[2]
        flaws = [{"instance": "Ada mumbles.", "severity": 5}, {"instance": "Ada and Brom agree.", "severity": None}]
        return {dimension: {"flaws": flaws * 4}}

    step = PlayScenes([rows[0].to_scene()], PlaySettings(), is_strict=True)
    played = run_step(step, llm_of(act), tmp_path / "scenes")
    assert len(played.result.scenes[0].turns) == 20
    judged = run_step(CritiqueScenes(rows, played.result.scenes), llm_of(judge), tmp_path / "critique")
    own_turns = sum(turn.speaker != ENVIRONMENT for turn in played.result.scenes[0].turns)
    expected = 100 - (24 - 0.3 * own_turns) * 5
    scores = rescore(judged.folder / "evaluation.json")
    assert dict(scores.cases["Lamps-3-1"]) == pytest.approx(dict.fromkeys(scores.cases["Lamps-3-1"], expected))
    assert judged.result.means["Mean"].mean == pytest.approx(expected)
    assert "Prompts of our own" in judged.result.remarks()[0]
    # Each has ten turns; what Ada says for Brom stays, as in CoSER, and is counted.
    ratings = {name: [rating.mean for rating in pair] for name, pair in judged.result.characters.items()}
    assert ratings == {"all": [0.5, 4.0], "Lamps: Ada": [1.0, 4 * 4 * 5 / 10], "Lamps: Brom": [0.0, 0.0]}
    assert "80 of 96 points of severity, count for it" in judged.result.remarks()[1]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("The threats of Lear sound hollow.", "King Lear", id="a part of a name"),
        pytest.param("Lear scolds the Fool.", "", id="two"),
        pytest.param("Goneril, of Lear's house, and Regan", "", id="one in the other's name"),
        pytest.param("A Foolish storm.", "", id="within a word"),
        pytest.param("Regan Lear is mild.", "Regan Lear", id="of two with a word in common, the whole name"),
    ],
)
def test_a_flaw_counts_for_the_one_character_whom_it_names(text: str, name: str) -> None:
    names = ["King Lear", "The Fool"] if "Regan" not in text else ["Regan Lear", "Goneril Lear", "The Fool"]
    assert find_only_named(text, names) == name


def test_the_judge_of_a_scene_is_shown_with_its_certificate(
    tmp_path: Path, llm_server: Callable[..., Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text(json.dumps([coser_row()]), encoding="utf-8")
    Path("llm.yaml").write_text(f"endpoints: [{{base_url: '{llm_server().url}', model: m}}]", encoding="utf-8")
    words = ("scene", "rows.json", "--format", "coser", "--llm", "llm.yaml", "--judge", "llm.yaml", "--json")
    # At most 20 turns, the choice of a speaker before each, and four verdicts.
    assert command(*words, "--dry-run").json["requests"] in range(40, 45)
    line = command(*words).json["certificate"]
    assert line.startswith("judge m: not examined; examine it with `rolellm judge --certify`, in this folder.")
    assert command("judge", "--certify", "--llm", "llm.yaml", "--limit", "4").code == 0
    assert "judge m: unfit (planted losers win up to" in command(*words).json["certificate"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"flaws": [{"severity": 9}]}, "severity", id="severity 9"),
        pytest.param({}, "flaws", id="no flaws"),
        pytest.param(None, "not judged", id="a dimension is missing"),
    ],
)
def test_an_evaluation_with_a_fault_names_the_scene(tmp_path: Path, change: Any, words: str) -> None:
    critique: dict[str, Any] = {}
    for name in ("Storyline Consistency", "Anthropomorphism", "Character Fidelity", "Storyline Quality"):
        critique[name] = {"flaws": [{"severity": 2}]}
    critique["Character Fidelity"] = change
    if change is None:
        del critique["Character Fidelity"]
    file = tmp_path / "evaluation.json"
    case = {"simulation": [{"role": "Ada", "content": "x"}], "critique": critique}
    file.write_text(json.dumps({"cases": {"Lamps-3-1": case}}), encoding="utf-8")
    with pytest.raises(DataError, match=words) as caught:
        rescore(file)
    assert "Lamps-3-1" in str(caught.value)


def write_evaluation(path: Path, severities: list[int], text: str = "x") -> Path:
    names = ("Storyline Consistency", "Anthropomorphism", "Character Fidelity", "Storyline Quality")
    cases = {}
    for number, severity in enumerate(severities):
        critique = {name: {"flaws": [{"severity": severity}]} for name in names}
        cases[f"Book {number}-0-0"] = {"simulation": [{"role": "Ada", "content": text}], "critique": critique}
    path.write_text(json.dumps({"cases": cases}), encoding="utf-8")
    return path


def test_a_cast_is_played_and_judged_for_pairs_by_command_after_a_dry_run_that_asks_nothing(
    tmp_path: Path, llm_server: Callable[..., Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = iter(["Gulls count.", "[hm] I count gulls.", *["No idea, sir, ask elsewhere."] * 2])
    server = llm_server(lambda _: next(answers))
    Path("llm.yaml").write_text(f"endpoints: [{{base_url: '{server.url}', model: m}}]", encoding="utf-8")
    Path("judge.yaml").write_text("endpoints: [{backend: scripted, rules: words}]", encoding="utf-8")
    values = {"setting": "A tower.", "characters": [{"name": "Ada", "description": "You count gulls."}], "turns": 2}
    Path("scene.yaml").write_text(json.dumps(values), encoding="utf-8")
    words = ("scene", "scene.yaml", "--cast", "Ada=llm.yaml", "--judge", "judge.yaml")
    # Two turns, drawn twice, and two verdicts on each pair.
    assert "8 requests" in command(*words, "--dry-run").out
    assert server.counts.calls == 0
    assert "rolellm prefer scene --out pairs" in command(*words).out
    pairs = command("prefer", "scene", "--set", "balance=false", "--out", "pairs", "--json").result
    assert pairs["sources"]["scene"]["pairs"] == 2


def test_two_evaluations_of_the_same_scenes_are_compared_scene_by_scene(tmp_path: Path) -> None:
    first = write_evaluation(tmp_path / "first.json", [1, 2, 3, 1, 2, 3, 1, 2], "by one cast")
    second = write_evaluation(tmp_path / "second.json", [3, 4, 5, 3, 4, 4, 3, 4], "by another")
    compared = compare_scores(first, second)
    assert compared.scenes == 8
    assert compared.differences["Anthropomorphism"].mean == pytest.approx(5 * 15 / 8)
    assert all(p < 0.05 for p in compared.p_values.values())
    assert "the first cast is ahead by 9.4 points" in compared.remarks()[0]
    judges = compare_scores(second, write_evaluation(tmp_path / "judge.json", [3, 4, 5, 3, 4, 5, 3, 4], "by another"))
    assert judges.is_same_play
    assert "Nothing is decided" in judges.remarks()[0]
    assert judges.correlations["Anthropomorphism"] == pytest.approx(0.93, abs=0.01)
    with pytest.raises(DataError, match="no scene in common"):
        (tmp_path / "other.json").write_text(first.read_text().replace("Book", "Tale"))
        compare_scores(first, tmp_path / "other.json")


def test_canaries(tmp_path: Path) -> None:
    parrots = play(
        tmp_path, scene(opening=({"Ada": "[hm] The lamp!"},)), repeat_last_line, is_strict=True
    ).result.scenes[0]
    assert {turn.visible_text.partition(": ")[2] for turn in parrots.turns} == {"The lamp!"}
    swapped = swap_profiles(scene())
    assert [each.description.split()[0] for each in swapped.characters] == ["Brom", "Cleo", "Ada"]


def test_a_file_of_her_is_recognized(tmp_path: Path) -> None:
    file = tmp_path / "her.json"
    file.write_text(json.dumps([{"sample_id": "1", "details": {"dimension_results": {}}}]), encoding="utf-8")
    with pytest.raises(DataError, match="HER"):
        rescore(file)


@pytest.mark.parametrize(
    ("played", "book", "f1"),
    [
        # By rouge-chinese 1.0.3; a question mark ends a line there, so that a quote after it is a word.
        pytest.param("a b c d", "a x c", 0.5714285665306124, id="words"),
        pytest.param('He asked "why?" so', 'She asked "why?" so', 0.7999999950000002, id="question mark"),
        pytest.param("", "a", 0.0, id="empty"),
    ],
)
def test_rouge_l_is_that_of_coser(played: str, book: str, f1: float) -> None:
    assert compute_rouge_l(played, book) == f1


def test_present_and_meeting() -> None:
    ada = SceneCharacter(name="Ada", description="x", present="1-3, 8-")
    assert [turn for turn in range(1, 10) if ada.is_present(turn)] == [1, 2, 3, 8, 9]
    assert not ada.meets(replace(ada, name="Brom", present="4-7"))


@pytest.mark.slow
def test_killed_twenty_times_a_scene_of_twenty_turns_is_as_if_it_never_was(
    tmp_path: Path, llm_server: Callable[..., Any], warm: Forking
) -> None:
    server = llm_server(latency=0.15)
    (tmp_path / "llm.yaml").write_text(f"endpoints: [{{base_url: '{server.url}', model: local}}]", encoding="utf-8")
    values = {"setting": "A tower.", "turns": 20, "characters": [{"name": name, "description": name} for name in NAMES]}
    (tmp_path / "scene.yaml").write_text(json.dumps(values), encoding="utf-8")
    words = ["scene", "scene.yaml", "--llm", "llm.yaml", "--out"]
    draw = random.Random(0)
    for _ in range(20):
        running = warm.start([*words, "killed"], tmp_path)
        # Killed at a moment after the first turn that it shows; those of earlier runs come at once.
        while not running.err.exists() or "\n" not in running.err.read_text(encoding="utf-8", errors="replace"):
            assert running.poll() in (None, 0)
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.3))
        running.send_signal(signal.SIGKILL)
        running.wait()
    warm([*words, "killed"], tmp_path)
    paid = server.counts.calls
    server.reset()
    warm([*words, "whole"], tmp_path)
    for file in ("transcript.jsonl", "dialogues.jsonl"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    # A kill may meet the one call that is on its way.
    assert server.counts.calls == 20 <= paid <= 20 + 20


def test_the_better_branch_of_a_turn_becomes_a_pair_with_the_prompt_that_the_character_saw(tmp_path: Path) -> None:
    prompts: dict[str, list[Request]] = {}

    def act(request: Request) -> str:
        name = request.tag.rpartition("/")[2]
        prompts.setdefault(name, []).append(request)
        # The second is better for Ada, and the first for Cleo; both wish that somebody spoke for Brom.
        gulls = "gull " * 9 * ((name == "Ada") == bool(request.repeat))
        unique = hash_json([message.content for message in request.messages])
        return f"[secret {name[0]}] {unique} {gulls}word {request.repeat}\nBrom: I agree."

    def judge(request: Request) -> Any:
        fences = read_fences(request.messages[1].content)
        has_gull = ["gull" in fences[f"answer {letter}"] for letter in "AB"]
        assert fences["question"].count("secret") == fences["question"].count(f"secret {fences['role'][0]}")
        verdict = {"reason": "Gulls.", "better": "A" if has_gull[0] else "B"}
        return {"style": verdict, "knowledge": verdict}

    options: Any = {"me": "Brom", "read_line": lambda _: "Good evening."}
    play_scene(scene(turns=4), llm_of(act), **options, out=tmp_path / "scene")
    with pytest.raises(SettingsError, match="play it again with --judge"):
        prefer(tmp_path / "scene")
    (first, *_) = prompts["Ada"]
    # What was played is not asked again.
    play_scene(scene(turns=4), llm_of(act), **options, branches=True, out=tmp_path / "scene")
    assert [request.repeat for request in prompts["Ada"]] == [0, 0, 1, 1]
    judge_branches(tmp_path / "scene", llm_of(judge))
    pairs = prefer(tmp_path / "scene", balance=False).records()
    replies = [(pair["role"], pair["chosen"][0]["content"][-1], pair["rejected"][0]["content"][-1]) for pair in pairs]
    assert replies == [("Ada", "1", "0"), ("Cleo", "0", "1"), ("Ada", "1", "0")]
    assert pairs[0]["prompt"] == [asdict(message) for message in first.messages]
    assert "secret C" not in str(pairs[2]) and "word 0" in str(pairs[2]["prompt"])

    play_scene(scene(turns=2), llm_of(lambda _: "Aye."), branches=True, out=tmp_path / "same")
    with pytest.raises(SettingsError, match="two different replies"):
        judge_branches(tmp_path / "same", llm_of(judge))
