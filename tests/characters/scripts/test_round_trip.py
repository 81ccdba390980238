"""Turns → a script in each format, or a file of turns → the same turns; and any text, which is read or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.characters.scripts.parse import parse_script
from rolellm.characters.scripts.play import read_play
from rolellm.characters.scripts.reading import Format, Reader, ReaderHints, ScriptTurn
from rolellm.characters.scripts.screenplay import read_screenplay
from rolellm.characters.scripts.source import make_source
from rolellm.characters.scripts.subtitles import read_subtitles
from rolellm.characters.scripts.transcript import read_transcript
from rolellm.characters.scripts.turns import read_turns, write_turns
from rolellm.core.errors import DataError
from rolellm.core.records import Turn
from rolellm.data.rolebench.release import load_profiles

# Hyphens, apostrophes, numbers, initials, names inside names.
ENGLISH = [
    *("Marcius", "Young Marcius", "First Citizen", "King", "Kingsley", "Jean-Luc", "O'Brien"),
    *("Anne of Cleves", "D. Hale"),
]
CHINESE = ["悟空", "悟空道人", "小猴甲", "郭翁", "赵云", "柳老汉"]
# A line that ends in a colon, brackets that are spoken of, quotes, numbers, other scripts.
WORDS = [
    *("the", "a", "speaks", "Rome", "Well", "naïve", "O", "42", "“so”", "it's", "you", "Marcius", "well-met", "é", "日")
]
HAN = ["天", "地", "师父", "来了", "好", "悟空", "水帘洞", "一"]

Said = tuple[str, list[str], str | None]
Script = list[list[Said]]


def sentences(words: list[str], joined: str, ends: str) -> st.SearchStrategy[str]:
    sentence = st.lists(st.sampled_from(words), min_size=1, max_size=6).map(joined.join)
    return st.tuples(sentence, st.sampled_from(ends)).map("".join).filter(is_words)


def is_words(text: str) -> bool:
    """Tell whether a line is not taken for numbers, which nobody says again and again."""
    return not text[0].isdigit() and sum(map(str.isdigit, text)) <= sum(map(str.isalpha, text))


ENGLISH_LINES = st.lists(sentences(WORDS, " ", ".!?,;"), min_size=1, max_size=3)
CHINESE_LINES = st.lists(sentences(HAN, "", "。！？，"), min_size=1, max_size=3)


def scripts(names: list[str], lines: st.SearchStrategy[list[str]], direction: st.SearchStrategy[str]) -> Any:
    """Scenes of speeches: a name, lines, and perhaps a direction in front of what is said."""
    said = st.tuples(st.sampled_from(names), lines, st.none() | direction)
    return st.lists(st.lists(said, min_size=1, max_size=6), min_size=1, max_size=3)


ENGLISH_SCRIPTS = scripts(ENGLISH, ENGLISH_LINES, st.sampled_from(["aside", "to Anne", "sits down, slowly"]))
CHINESE_SCRIPTS = scripts(CHINESE, CHINESE_LINES, st.sampled_from(["笑", "跪下", "对悟空"]))


def written(title: str, heading: str, speech: str, direction: str, line: str = "{}") -> Callable[[Script], str]:
    """A function that writes scripts, by its templates."""

    def write(script: Script) -> str:
        text = title
        for number, scene in enumerate(script, start=1):
            text += heading.format(number)
            for name, lines, directed in scene:
                aside = direction.format(directed) if directed else ""
                said = "\n".join(map(line.format, lines))
                text += speech.format(name=name, NAME=name.upper(), aside=aside, lines=said)
        return text

    return write


AS_FOUNTAIN = ("Title: A Test\nAuthor: Us\n", "\nINT. ROOM {} - DAY\n", "\n{NAME} (V.O.)\n{aside}{lines}\n", "({})\n")
AS_INDENTED = (
    "",
    "\n     {0}   EXT. FIELD {0} - NIGHT       {0}\n\n          Something happens.\n",
    f"\n{' ' * 30}{{NAME}} (CONT'D)\n{{aside}}{{lines}}\n",
    f"{' ' * 24}({{}})\n",
    f"{' ' * 18}{{}}",
)
CAPTION = "1\n00:00:01,000 --> 00:00:02,000\n{NAME}{aside}: {lines}\n\n"
WRITERS: list[Any] = [
    pytest.param(("", "\n\nSCENE {}\n", "\n{NAME}:\n{aside}{lines}\n", "[{}] "), "play", id="play, colons"),
    pytest.param(("", "\n\nSCENE {}\n", "\n{NAME}.\n{aside}{lines}\n", "[{}] "), "play", id="play, full stops"),
    pytest.param(("", "\n\nACT {}\n", "\n{NAME}. {aside}{lines}\n", "[{}] "), "play", id="play, names in front"),
    pytest.param(AS_FOUNTAIN, "screenplay", id="fountain"),
    pytest.param(AS_INDENTED, "screenplay", id="indented screenplay"),
    pytest.param(
        ("A TITLE\n", "\n[Scene {}: A room.]\n\n", "{name}{aside}: {lines}\n", " ({})"), "transcript", id="transcript"
    ),
    pytest.param(
        ("《题》\n", "\n【第{}场】\n\n", "{name}：{aside}{lines}\n", "（{}）"), "transcript", id="Chinese transcript"
    ),
    pytest.param(("", "", CAPTION, " ({})"), "subtitles", id="subtitles"),
]


@pytest.mark.parametrize(("templates", "format"), WRITERS)
def test_what_is_written_is_read(templates: tuple[str, ...], format: Format) -> None:
    strategy = CHINESE_SCRIPTS if templates[0] == "《题》\n" else ENGLISH_SCRIPTS
    write = written(*templates)

    @settings(max_examples=60)
    @given(strategy, st.data())
    def check(script: Script, data: st.DataObject) -> None:
        text = write(script)
        names = sorted({said[0] for scene in script for said in scene})
        role = data.draw(st.sampled_from(names))
        parsed = parse_script(make_source(text), role, format=format)
        # The role's name comes as asked for, in whatever case the script has it; a name that holds it stays another's.
        expected: list[tuple[str, str, int]] = []
        for number, scene in enumerate(script):
            for name, lines, direction in scene:
                place = 0 if format == "subtitles" else number
                if direction:
                    expected.append(("(direction)", direction, place))
                spelled = role if name == role else name
                expected.append((spelled.casefold(), " ".join(" ".join(lines).split()), place))
        read = [
            (turn.speaker.casefold() if turn.kind == "speech" else "(direction)", turn.content, turn.scene)
            for turn in parsed.turns
            if turn.kind != "narration"
        ]
        assert read == expected
        for turn in parsed.turns:
            assert " ".join(text[turn.start : turn.end].split()) == turn.content
        assert all(turn.speaker == role for turn in parsed.turns if turn.speaker.casefold() == role.casefold())
        assert parse_script(make_source(text), role).format == format

    check()


READERS: dict[Format, Reader] = {
    "play": read_play,
    "screenplay": read_screenplay,
    "transcript": read_transcript,
    "subtitles": read_subtitles,
}
_PIECES = (
    "JOHN|John|Mary|悟空|:|：|.|\n|\n\n| |    |\t|(|)|[|]|（|）|_|ACT I|SCENE|Enter|Exit|CUT TO:|@|^|/*|*/|[[|]]|"
    'INT. A|!|>|<|=|#|1|00:00:01,000 --> 00:00:02,000|-|<v Bob>|♪|"|“|”|「|said|道|***|第一场|Note'
)
PIECES = st.lists(st.sampled_from(_PIECES.split("|")), max_size=60).map("".join)


@pytest.mark.parametrize("format", READERS)
def test_any_text_is_read_in_any_format(format: Format) -> None:
    @settings(max_examples=120)
    @given(PIECES | st.text(max_size=80))
    def check(raw: str) -> None:
        source = make_source(raw)
        found = READERS[format](source, ReaderHints("en", ("John",)))
        ends = [0]
        for item in found:
            _check(item, source.text, exact=format != "screenplay")
            # One after the other, none inside another, scenes in their order.
            assert item.start >= ends[-1]
            ends.append(item.end)
        scenes = [item.scene for item in found]
        assert scenes == sorted(scenes)

    check()


def _check(item: ScriptTurn, text: str, *, exact: bool) -> None:
    told = text[item.start : item.end]
    if exact:
        assert item.content == " ".join(told.split())
    # A screenplay's notes and page furniture are left out of a turn.
    rest = iter(told)
    assert all(letter in rest for letter in "".join(item.content.split()))
    assert item.content or (item.kind == "speech" and item.speaker)
    assert item.speaker is None or item.speaker.strip()


# --- files of turns


TURNS = (
    Turn("scene", "A vineyard.", "narration", 0, 0, 11),
    Turn("Crow", "Sing!", "speech", 0, 12, 17),
    Turn("stage direction", "laughs", "direction", 0, 18, 24),
    Turn("Fox", "No.", "speech", 0, 25, 28),
    Turn("?", "Hm.", "speech", 3, 30, 33),
    Turn("Fox", "Sour!", "speech", 3, 34, 39),
)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_releases_layout(tmp_path: Path, write_release: Any) -> None:
    path = tmp_path / "turns.jsonl"
    assert write_turns(path, TURNS, "Fox", layout="release") == 6
    assert rows(path)[4] == {"role": "?", "content": "Hm.", "act_id": 3, "diag_id": 0}
    read = tuple(read_turns(path, "Fox"))
    assert [(turn.speaker, turn.content, turn.kind) for turn in read] == [(t.speaker, t.content, t.kind) for t in TURNS]
    assert [turn.scene for turn in read] == [0, 0, 0, 0, 1, 1]
    # The data set's own reader says the same.
    folder = write_release(**{"profiles-eng/profiles-eng-Fox.jsonl": path.read_text(encoding="utf-8")})
    assert load_profiles("instruction-generalization-eng", folder, roles=["Fox"])[0].turns == read


@pytest.mark.parametrize("role", ["Narrator", "Stage Direction", "旁白", "scene"])
def test_a_role_that_is_called_like_narration(tmp_path: Path, role: str) -> None:
    path = tmp_path / "turns.jsonl"
    turns = [Turn(role, "Once.", "speech"), Turn("narrator", "A bell.", "narration"), Turn("x", "exits", "direction")]
    write_turns(path, turns, role, layout="release")
    read = [(turn.kind, turn.content, turn.speaker == role) for turn in read_turns(path, role)]
    assert read == [("speech", "Once.", True), ("narration", "A bell.", False), ("direction", "exits", False)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param('{"role": "Fox"', "not valid JSON", id="cut off"),
        pytest.param('{"role": "a", "content": "x", "kind": "speech", "scene": 0, "end": "9"}', "'9'", id="a text"),
        pytest.param('{"role": "a", "content": "\\ud800", "kind": "speech", "scene": 0}', "half a", id="surrogate"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, message: str) -> None:
    path = tmp_path / "turns.jsonl"
    write_turns(path, TURNS[:2], "Fox")
    path.write_text(path.read_text(encoding="utf-8") + bad + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        list(read_turns(path))
    assert caught.value.line == 3


@given(
    st.lists(
        st.builds(
            Turn,
            speaker=st.sampled_from(["Fox", "Crow", "narrator", "旁白", "First Fox"]),
            content=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip),
            kind=st.sampled_from(["speech", "narration", "direction"]),
            scene=st.integers(0, 3),
            start=st.integers(-1, 10**9),
            end=st.integers(-1, 10**9),
        ),
        max_size=8,
    )
)
def test_there_and_back(tmp_path_factory: pytest.TempPathFactory, turns: list[Turn]) -> None:
    path = tmp_path_factory.getbasetemp() / "back.jsonl"
    write_turns(path, turns, "Fox")
    assert list(read_turns(path)) == turns
