"""Boundaries, drift and rewards: what is asked, where a role breaks, and verdicts with their exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

from rolellm.characters.folder import write_character
from rolellm.characters.roles import find_part
from rolellm.checks.boundary import make_modern_items, make_story_items, make_stranger_items, write_boundary
from rolellm.checks.breaks import BREAKS, shows_ignorance
from rolellm.checks.character_tests import list_assertions, read_tests
from rolellm.checks.drift import MeasureDrift, RecordedTalk, measure, read_systems, read_talks
from rolellm.core.errors import DataError, RecipeError, SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Language, Profile, Turn
from rolellm.making.instruct.run import Question
from rolellm.measures import audit_reward
from rolellm.reporting.build import build_report, collect_sources
from rolellm.reporting.page import page_pieces
from rolellm.runs import run_step

from ..commands import Command
from .replies import select_replies

# --- drift


ROLE = {"en": "Ada Fenn", "zh": "鲁智深"}
OWN = {"en": ["Seventy-two steps, and I count them all."], "zh": ["洒家来也！先吃三碗酒再说！"]}
KEEPS, BAD = select_replies("good"), select_replies("bad")


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
    good = st.sampled_from(KEEPS[language])
    replies = [f"{data.draw(good)} {number}" for number in range(turn - 1)]
    replies += [data.draw(st.sampled_from(BAD[language][kind]))]
    replies += [f"{data.draw(good)} {turn + number}" for number in range(after)]
    session = as_talk(talk(language, replies), tmp_path_factory.mktemp("talks"))
    broken = [one for one in measure(session) if one.breaks]
    assert [one.turn for one in broken] == [turn]
    assert kind in broken[0].breaks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_is_no_break(language: Language, tmp_path: Path) -> None:
    given = talk(language, KEEPS[language])
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
    once, other = KEEPS["en"][:2]
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
    talks = [talk("en", KEEPS["en"] * 2, f"{number}") for number in range(4)]
    for number, turn in ((0, 3), (1, 7)):
        talks[number]["messages"][2 * turn - 1]["content"] = BAD["en"]["says_ai"][0]
    # A session that ends early says nothing of later turns.
    talks.append(talk("en", KEEPS["en"][:4], "4"))
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
    read(tmp_path, talk("zh", [*KEEPS["zh"], *BAD["zh"]["says_ai"]]))
    words = ["check", "drift", tmp_path, "--out", tmp_path / "out"]
    done = command(*words)
    assert done.code == 0 and "Half broken" in done.out and "says ai 1" in done.out
    assert command(*words, "--json").json["systems"]["scripted"]["half_life"] == 7


# --- boundaries


LINES = [
    ("Joss", "A crate of oranges lies on the beach!"),
    ("Mara", "I kept a letter in the clock for seven years."),
    ("Joss", "The rope snapped, keeper, and the bell fell into the well."),
]
PAIRS = [
    Question("crate", "Mara, what did Joss find?", "He found a crate of oranges on the beach.", "script_based"),
    Question("bell", "Mara, what became of the bell?", "It fell, at the lighthouse.", "script_based"),
    Question("fish", "Mara, how do you cook a crab?", "In the well, with oranges.", "script_agnostic"),
]
DESCRIPTION = "You are Mara, who keeps the lighthouse at Sorrel Point."
SHEET = Profile("Mara", "en", tuple(Turn(*line) for line in LINES), description=DESCRIPTION)
MILL = (Turn("Ada", "Who broke the mill, cook?"), Turn("Pim Tansy", "The wind did."), Turn("The cook", "Not I!"))
STRANGERS = Profile("Ada", "en", MILL)


def test_the_story_is_asked_for_words_that_only_its_script_has() -> None:
    items = {item["ask"]: item["says"] for item in make_story_items(SHEET, PAIRS)}
    # A recipe is no event, and what the question or the description says is no sign of knowledge.
    assert items == {PAIRS[0].question: ["crate", "oranges", "beach"], PAIRS[1].question: ["fell"]}
    # Strangers are people whom the story does not have.
    (item,) = make_stranger_items(SHEET, [STRANGERS, SHEET])
    assert "Pim Tansy" in item["ask"] and "says_not" not in item


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_modern_world_begins_after_the_year_of_the_characters(language: Language) -> None:
    counts = [len([*make_modern_items(Profile("Mara", language), year)]) for year in (None, 2100, 1950, 1000)]
    assert counts[:2] == [0, 0] and 0 < counts[2] < counts[3]


@pytest.mark.parametrize(
    ("language", "reply", "is_ignorant"),
    [
        ("en", "I don’t know any Bosun Marrow.", True),
        ("en", "Smartphone? What be a smartphone?", True),
        ("en", "He is an old friend of mine. Who is to say otherwise? Not I.", False),
        ("en", "He saved my boat; I don't know how to thank him for it.", False),
        ("zh", "洒家不认得什么陈朗。", True),
        ("zh", "不知不觉天就亮了，他往东去了。", False),
    ],
)
def test_a_reply_shows_ignorance(language: Language, reply: str, is_ignorant: bool) -> None:
    assert shows_ignorance(reply, language) is is_ignorant


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = write_character(SHEET, tmp_path / "mara")
    (folder / "instruct").mkdir()
    lines = ({"id": one.id, "question": one.question, "answer": one.answer, "type": one.type} for one in PAIRS)
    write_jsonl(folder / "instruct" / "kept.jsonl", lines)
    return folder


def test_they_are_added_to_the_file_once_and_the_rest_stays(home: Path, command: Command) -> None:
    done = command("check", "boundary", home, "--world-year", "2008", "--limit", "5")
    assert done.code == 0 and "rolellm check Mara.character.yaml" in done.out, done.err
    file = Path("Mara.character.yaml")
    text = file.read_text(encoding="utf-8").replace("samples: 3", "samples: 1  # one is enough")
    file.write_text(text, encoding="utf-8")
    tests = read_tests(file)
    assert {fact.ask[-1] for fact in tests.knows} >= {PAIRS[0].question, PAIRS[1].question}
    assert sum(not secret.says_not for secret in tests.does_not_know) == 5 + 2
    (stranger,) = (one for one in list_assertions(tests, find_part(home)) if "Bitcoin" in one.name)
    assert stranger.judge(stranger.talks[0], ["I know of no such thing."], ()) == ""
    assert "does not say" in stranger.judge(stranger.talks[0], ["With my phone, dear."], ())
    again = write_boundary(home, world_year=2008, limit=5)
    assert (again.story, again.modern) == (0, 0)
    assert "samples: 1  # one is enough" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "knows", ["", "knows:\n- ask: Who?\n  says: I\n", 'knows:   # mine\n    - {ask: "Who?", says: I}\n']
)
def test_any_block_list_takes_them(knows: str, home: Path) -> None:
    Path("Mara.character.yaml").write_text(f"role: mara\n{knows}least: 1\n", encoding="utf-8")
    assert write_boundary(home).story == 2
    values = yaml.safe_load(Path("Mara.character.yaml").read_text(encoding="utf-8"))
    assert len(values["knows"]) == 2 + bool(knows) and values["least"] == 1


def test_a_list_on_one_line_is_refused(home: Path) -> None:
    Path("Mara.character.yaml").write_text("role: mara\nknows: [{ask: Me, says: I}]\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="knows is not a list"):
        write_boundary(home)


# --- rewards


GOOD = [f"rolellm.rewards.{name}" for name in ("in_character", "knowledge", "style", "answer", "rouge")]


def test_length_is_beaten(command: Command, tmp_path: Path) -> None:
    # A name without a dot is one of ours.
    told = command("check", "reward", "length", "--limit", 30, "--out", tmp_path / "out")
    assert told.code == 1
    assert told.out.startswith("length: a canary that should lose wins or ties")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["summary"]["rewards"]["length"]["empty"]["verdict"] == "beaten"


def test_the_rewards_of_the_recipe_hold_together(command: Command, tmp_path: Path) -> None:
    words = ("check", "reward", *GOOD, "--limit", 60, "--out", tmp_path / "out", "--json")
    told = command(*words, *(word for weight in (1, 1, 2, 1, 1) for word in ("--set", f"weights={weight}")))
    assert told.code == 0
    together = told.json["rewards"]["together"]
    assert told.json["beaten"] == []
    weak = {"plain": 0.6, "off_topic": 0.7, "sandwich": 0.7}
    assert all(figures["lost"]["mean"] >= weak.get(kind, 0.9) for kind, figures in together.items())
    low, high = together["plain"]["lost"]["ci95"]
    assert low < together["plain"]["lost"]["mean"] <= high
    replies = [json.loads(line) for line in (tmp_path / "out/replies.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {reply["kind"] for reply in replies} >= {"own", "empty", "other_role"}


def test_own_data_and_functions(tmp_path: Path) -> None:
    row = {"role": "Mara", "question": "Who keeps the light?", "references": ["I keep it.", "It is me, girl."]}
    write_jsonl(tmp_path / "rows.jsonl", [row])

    def nonsense(completions: list[object], **_: object) -> list[float]:
        return [0.0] * len(completions)

    result = audit_reward(nonsense, tmp_path / "rows.jsonl", out=tmp_path / "out").result
    assert result.rows == result.held_out == 1
    assert "empty" in result.beaten
    with pytest.raises(RecipeError, match="there is no"):
        audit_reward("rolellm.nothing", [row], out=tmp_path / "other")
