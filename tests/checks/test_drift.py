"""Drift: a role that breaks at turn k is found to break at turn k, in any way and both languages."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

from rolellm.checks.breaks import BREAKS
from rolellm.checks.drift import MeasureDrift, RecordedTalk, measure, read_systems, read_talks
from rolellm.core.errors import DataError
from rolellm.core.records import Language
from rolellm.reporting.build import build_report, collect_sources
from rolellm.reporting.page import page_pieces
from rolellm.runs import run_step

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


def read(tmp: Path, *talks: dict[str, Any]) -> list[RecordedTalk]:
    path = tmp / "sessions.jsonl"
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in talks), encoding="utf-8")
    return read_talks(path)


def as_talk(given: dict[str, Any], tmp: Path) -> RecordedTalk:
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
    given = talk(language, GOOD[language])
    # A greeting is no reply.
    given["messages"].insert(0, {"role": "assistant", "content": "As an AI, I greet you."})
    found = list(measure(as_talk(given, tmp_path)))
    assert [one.breaks for one in found] == [{}] * 6
    assert all(one.values["in_character"] == one.values["person"] == one.values["language"] == 1 for one in found)


def test_a_message_handed_back_is_a_break_and_a_short_reply_the_third_time(tmp_path: Path) -> None:
    for language, reply in (("en", "Who are you, friend"), ("zh", "你今天都做了些什么")):
        given = talk(language, [f"{reply}!"])
        given["messages"][0]["content"] = f"{reply}?"
        (found,) = measure(as_talk(given, tmp_path))
        assert list(found.breaks) == ["repeats"]
    once, other = GOOD["en"][:2]
    session = as_talk(talk("en", [once, other, once, other, f"{once} "]), tmp_path)
    assert [list(one.breaks) for one in measure(session)] == [[], [], [], [], ["repeats"]]


def test_repetition_and_style(tmp_path: Path) -> None:
    line = "I count the steps every night, friend."
    replies = [line, line, "I count the steps alone.", "Seventy-two steps, and I count them all.", "Aye."]
    found = [one.values for one in measure(as_talk(talk("en", replies), tmp_path))]
    assert [round(one.get("repetition", -1), 2) for one in found] == [0.0, 1.0, 0.5, 0.0, -1]
    assert found[3]["style"] == 1 and found[0]["style"] == pytest.approx(1 / 6) and "style" not in found[4]
    # A reply that says one thing over and over repeats itself, too.
    looped = next(measure(as_talk(talk("en", [" ".join(["You told me so."] * 20)]), tmp_path)))
    assert looped.values["repetition"] > 0.9


def test_windows_breaks_and_the_page(tmp_path: Path) -> None:
    talks = [talk("en", GOOD["en"] * 2, f"{number}") for number in range(4)]
    for number, turn in ((0, 3), (1, 7)):
        talks[number]["messages"][2 * turn - 1]["content"] = BAD["en"]["says_ai"][0]
    # A session that ends early says nothing of later turns.
    talks.append(talk("en", GOOD["en"][:4], "4"))
    read(tmp_path, *talks)
    run = run_step(MeasureDrift(read_systems([f"<b>tuned</b>={tmp_path}"])), None, tmp_path / "out")
    (system,) = run.result.systems.values()
    unbroken = [window.measures["unbroken"] for window in system.windows]
    assert [(window.first, window.last) for window in system.windows] == [(1, 5), (6, 10), (11, 12)]
    assert [share and (share.mean, share.n) for share in unbroken] == [(0.75, 4), (0.5, 4), (0.5, 4)]
    share = system.windows[0].measures["in_character"]
    assert share and share.ends and share.n == 24 and share.ends[0] < share.mean < share.ends[1] <= 1
    assert (system.half_life, system.broken, system.first_breaks) == (7, 2, {"says_ai": 2})
    assert [reply["turn"] for reply in run.records() if reply["breaks"]] == [3, 7]
    built = build_report(collect_sources([str(tmp_path / "out")]))
    html = "".join(page_pieces(built.content))
    # The page shows the first break of each kind, and the recipe behind the figures.
    assert escape(BAD["en"]["says_ai"][0]) in html and "turn 3</h4>" in html and "<b>tuned" not in html
    assert "tuned&lt;/b&gt;&#34;: {" in html and "&#34;temperature&#34;" in html
    assert {"drift", "drift-breaks"} <= built.named_tables.keys()


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
    done = command(*words)
    assert done.code == 0 and "Half broken" in done.out and "says ai 1" in done.out
    assert command(*words, "--json").json["systems"]["scripted"]["half_life"] == 7
