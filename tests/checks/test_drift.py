"""Drift: a role that breaks at turn k is found to break at turn k, in any way and both languages."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

from rolellm.checks.breaks import BREAKS
from rolellm.checks.drift import MeasureDrift, Talk, measure, read_systems, read_talks
from rolellm.core.errors import DataError
from rolellm.core.records import Language
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.reporting.build import build_report
from rolellm.reporting.page import page_pieces, write_page
from rolellm.runs import plan_requests, run_step

from ..commands import Command
from .replies import select_replies

ROLE = {"en": "Ada Fenn", "zh": "鲁智深"}
OWN = {"en": ["Seventy-two steps, and I count them all."], "zh": ["洒家来也！先吃三碗酒再说！"]}
GOOD, BAD = select_replies("good"), select_replies("bad")


def talk(language: Language, replies: list[str], name: str = "1") -> dict[str, Any]:
    """A session as a line of a file."""
    asked = "Go on." if language == "en" else "接着说。"
    said = [(who, text) for reply in replies for who, text in (("user", asked), ("assistant", reply))]
    messages = [{"role": who, "content": text} for who, text in said]
    meta = {
        "model": "scripted",
        "sampling": {"temperature": 0.25},
        "names": [ROLE[language]],
        "description": f"You are {ROLE[language]}, who keeps the lighthouse.",
        "lines": OWN[language],
    }
    return {"id": name, "role": ROLE[language], "language": language, "messages": messages, "meta": meta}


def read(tmp: Path, *talks: dict[str, Any]) -> list[Talk]:
    path = tmp / "sessions.jsonl"
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in talks), encoding="utf-8")
    return read_talks(path)


def as_talk(given: dict[str, Any], tmp: Path) -> Talk:
    return read(tmp, given)[0]


languages = st.sampled_from(["en", "zh"])


@settings(max_examples=60)
@given(
    data=st.data(), language=languages, kind=st.sampled_from(BREAKS), turn=st.integers(1, 40), after=st.integers(0, 8)
)
def test_a_break_at_turn_k_is_found_at_turn_k(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, language: Language, kind: str, turn: int, after: int
) -> None:
    good = st.sampled_from(GOOD[language])
    replies = [f"{data.draw(good)} {number}" for number in range(turn - 1)]
    replies += [data.draw(st.sampled_from(BAD[language][kind]))]
    replies += [f"{data.draw(good)} {turn + number}" for number in range(after)]
    session = as_talk(talk(language, replies), tmp_path_factory.mktemp("talks"))
    broken = [one for one in measure(session) if one.breaks]
    assert [one.turn for one in broken] == [turn]
    assert kind in broken[0].breaks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_is_no_break(language: Language, tmp_path: Path) -> None:
    found = list(measure(as_talk(talk(language, GOOD[language]), tmp_path)))
    assert [one.breaks for one in found] == [()] * 6
    assert all(one.values["in_character"] == one.values["person"] == one.values["language"] == 1 for one in found)


@pytest.mark.parametrize(("language", "asked"), [("en", "Who are you, friend?"), ("zh", "你今天都做了些什么？")])
def test_a_message_handed_back_is_a_break(language: Language, asked: str, tmp_path: Path) -> None:
    for reply in (asked, f"{asked[:-1]}!"):
        given = talk(language, [reply])
        given["messages"][0]["content"] = asked
        (found,) = measure(as_talk(given, tmp_path))
        assert found.breaks == ("repeats",)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_short_reply_is_a_break_the_third_time(language: Language, tmp_path: Path) -> None:
    once, other = GOOD[language][:2]
    session = as_talk(talk(language, [once, other, once, other, f"{once} "]), tmp_path)
    assert [one.breaks for one in measure(session)] == [(), (), (), (), ("repeats",)]


def test_a_greeting_is_no_reply(tmp_path: Path) -> None:
    given = talk("en", GOOD["en"][:2])
    given["messages"].insert(0, {"role": "assistant", "content": "As an AI, I greet you."})
    assert as_talk(given, tmp_path).replies == GOOD["en"][:2]


def test_repetition_and_style(tmp_path: Path) -> None:
    line = "I count the steps every night, friend."
    replies = [line, line, "I count the steps alone.", "Seventy-two steps, and I count them all.", "Aye."]
    found = [one.values for one in measure(as_talk(talk("en", replies), tmp_path))]
    assert [round(one.get("repetition", -1), 2) for one in found] == [0.0, 1.0, 0.5, 0.0, -1]
    assert found[3]["style"] == 1 and found[0]["style"] == pytest.approx(1 / 6) and "style" not in found[4]
    parrot = talk("en", ["Why did you come to the island so late?"])
    parrot["messages"][0]["content"] = "And why did you come to the island so late?"
    assert next(measure(as_talk(parrot, tmp_path))).values["repetition"] == 1
    # A reply that says one thing over and over repeats itself, too.
    looped = next(measure(as_talk(talk("en", [" ".join(["You told me so."] * 20)]), tmp_path)))
    assert looped.values["repetition"] > 0.9


def test_windows_and_the_curve(tmp_path: Path) -> None:
    talks = [talk("en", GOOD["en"] * 2, f"{number}") for number in range(4)]
    for number, turn in ((0, 3), (1, 7)):
        talks[number]["messages"][2 * turn - 1]["content"] = BAD["en"]["says_ai"][0]
    read(tmp_path, *talks)
    one = run_step(MeasureDrift(read_systems([str(tmp_path)])), None, tmp_path / "out").summary["systems"]["scripted"]
    assert [(row["from"], row["to"], row["unbroken"]["mean"]) for row in one["windows"]] == [
        (1, 5, 0.75),
        (6, 10, 0.5),
        (11, 12, 0.5),
    ]
    assert one["windows"][0]["in_character"] | {"ci95": 0} == {
        "mean": 0.95,
        "n": 20,
        "ci95": 0,
        "method": "Wilson's by session",
    }
    low, high = one["windows"][0]["in_character"]["ci95"]
    assert low < 0.95 < high <= 1
    assert (one["half_life"]["turns"], one["broken"], one["first_breaks"]) == (7, 2, {"says_ai": 2})
    turns = [json.loads(line) for line in (tmp_path / "out" / "turns.jsonl").read_text().splitlines()]
    assert [line["turn"] for line in turns if line["breaks"]] == [3, 7]
    # The page shows the first break of each kind, and says that four sessions are few.
    (example,) = one["examples"].values()
    assert (example["turn"], example["reply"]) == (3, BAD["en"]["says_ai"][0])
    html = "".join(page_pieces(build_report([str(tmp_path / "out")]).content))
    assert "Too few sessions." in html and escape(example["reply"]) in html and "says ai · scripted, turn 3" in html


def judge_of(request: Request) -> Any:
    """A judge that finds fault with every line that names a lamp."""
    asked = request.messages[-1].content
    name = request.tag.partition("/")[0]
    if name == "line":
        ok = "lamp" not in asked.rpartition(" line>>>")[0].rpartition(" line>>>")[2]
        return {"description": {"reason": "r", "consistent": ok}, "earlier": {"reason": "r", "consistent": True}}
    if name == "session":
        grade = {"reason": "r", "grade": 4}
        return dict.fromkeys(("character", "knowledge", "coherence", "interest"), grade)
    if name == "questions":
        return {"questions": [{"question": f"What {n}?", "answer": "That."} for n in range(3)]}
    return {"answers": ["agrees", "contradicts", "silent"]}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_judge(language: Language, tmp_path: Path) -> None:
    replies = GOOD[language] if language == "zh" else [*GOOD["en"][:2], *GOOD["en"][3:], GOOD["en"][0]]
    talks = read(tmp_path, talk(language, replies))
    step, llm = MeasureDrift({"scripted": talks}), LLM.of(ScriptedModel(judge_of, rules_hash="1"))
    # A dry run needs no model's answer.
    assert len(plan_requests(step, llm)) == 6 + 2 + 1 + 2
    done = run_step(step, llm, tmp_path / "judge")
    assert done.summary["systems"]["scripted"]["judge"] == {"unscored": 0, "of": 11}
    values = [line["values"] for line in done.records()]
    lamp = [1.0, 0.0, 1.0, 1.0, 1.0, 1.0] if language == "en" else [1.0] * 6
    assert [one["prompt_to_line"] for one in values] == lamp
    assert "line_to_line" not in values[0] and values[1]["line_to_line"] == 1
    assert (values[4]["questions"], values[4]["rubric_character"]) == (0.5, 0.75)
    assert done.manifest["spent"]["calls"] == 11
    again = run_step(step, llm, tmp_path / "judge").manifest["spent"]
    assert (again["calls"], again["from_journal"]) == (0, 11)


def test_a_page_with_the_curves_of_two_models(tmp_path: Path) -> None:
    for name, bad in (("plain", "says_ai"), ("<b>tuned</b>", "for_user")):
        folder = tmp_path / name.strip("<>b/")
        folder.mkdir()
        read(folder, *(talk("en", [*GOOD["en"], BAD["en"][bad][0]], f"{n}") for n in range(3)))
        run_step(MeasureDrift(read_systems([f"{name}={folder}"])), None, folder / "out")
    folders = sorted(str(path) for path in tmp_path.glob("*/out"))
    built = build_report(folders)
    page = write_page(tmp_path / "report.html", built.content).read_text(encoding="utf-8")
    assert page.count('class="curve"') == page.count('class="band"') == 2
    # Three sessions say little of when half are left.
    assert "7 [1, over 7]" in page and "<b>tuned" not in page
    # The recipe behind the figures.
    assert "plain.sampling.temperature" in page and "0.25" in page
    assert {"drift", "drift-life"} <= built.tables.keys()


@pytest.mark.parametrize(
    ("line", "told"),
    [("{}", "role"), ('{"role": "A", "language": "fr", "messages": []}', "language"), ("", "no session")],
)
def test_damaged_sessions(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "sessions.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        read_talks(tmp_path)
    with pytest.raises(DataError, match="rolellm check converse"):
        read_talks(tmp_path / "nowhere.jsonl")


def test_the_command(tmp_path: Path, command: Command) -> None:
    read(tmp_path, talk("zh", [*GOOD["zh"], *BAD["zh"]["says_ai"]]))
    words = ["check", "drift", tmp_path, "--out", tmp_path / "out"]
    shown = command(*words)
    assert shown.code == 0 and "Half-life" in shown.out and "says ai 1" in shown.out
    assert command(*words, "--json").json["systems"]["scripted"]["half_life"] == {"turns": 7, "ci95": None}
