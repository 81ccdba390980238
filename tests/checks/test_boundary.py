"""Where a character's knowledge ends: what is asked, and what of it goes into the test file."""

from pathlib import Path

import pytest
import yaml

from rolellm.characters.folder import write_character
from rolellm.characters.roles import find_part
from rolellm.checks.boundary import make_modern_items, make_story_items, make_stranger_items, write_boundary
from rolellm.checks.breaks import shows_ignorance
from rolellm.checks.character_tests import list_assertions, read_tests
from rolellm.core.errors import SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Language, Profile, Turn
from rolellm.making.instruct.run import Question

from ..commands import Command

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
