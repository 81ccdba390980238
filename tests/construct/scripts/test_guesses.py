"""Who speaks where the text does not name the speaker: guessed, only when asked for, and counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.construct.scripts.novel import read_novel
from rolellm.construct.scripts.parse import parse_script
from rolellm.construct.scripts.reading import Hints
from rolellm.construct.scripts.source import source_of

TWO = '"Any news, Tom?" asked Ann.\n\n"None," said Tom.\n\n'


def guessed(text, language, *names):
    turns = read_novel(source_of(text), Hints(language, names, guess=True))
    return [turn.speaker for turn in turns if turn.kind == "speech"]


@pytest.mark.parametrize(
    ("text", "speakers"),
    [
        pytest.param('"Then we wait."\n\n"For how long?"', ["Ann", "Tom"], id="turns"),
        pytest.param('"Then we wait." Rain fell. "As always."', ["Ann", "Ann"], id="one paragraph, one speaker"),
        pytest.param('Ann shook her head. "Then we wait."', ["Ann"], id="who acts"),
        pytest.param('"Then we wait," sighed Ann.', ["Ann"], id="another verb"),
        pytest.param('"Then we wait," she said. Ann took her coat.', ["Ann"], id="a pronoun"),
        pytest.param('"Then we wait," said the old man.', ["the old man"], id="a description"),
        pytest.param('The rain fell on the roofs.\n\n"Then we wait."', [None], id="narration between"),
        pytest.param('"Then we wait," cheered Bob.', [None], id="nobody known"),
    ],
)
def test_english(text, speakers):
    assert guessed(TWO + text, "en")[2:] == speakers
    assert len(guessed(TWO + text, "en")) == 2 + len(speakers)


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        pytest.param("小明看了看天，抓起雨伞，回头说道：“走。”", "小明", id="the subject carries over"),
        pytest.param("小明看了看天，那猫跳上桌来，叫道：“走。”", None, id="somebody else comes in"),
        pytest.param("一个船夫道：“走。”", "船夫", id="a description"),
        pytest.param("众人一齐道：“走。”", "众人", id="a group"),
        pytest.param("小明看着墙，上面写道：“走。”", None, id="an inscription"),
        pytest.param("他道：“走。”", None, id="a pronoun"),
    ],
)
def test_chinese(text, speaker):
    assert guessed("小明道：“来。”\n" + text, "zh") == ["小明", speaker]


def test_who_goes_on_speaking_is_the_same() -> None:
    assert guessed("小明道：“来。”又道：“走。”", "zh") == ["小明", "小明"]


def test_adverbs_are_nobody() -> None:
    lines = [f"{manner}道：“啊。”" for manner in ("忽然", "连忙", "大声", "大笑", "又", "责之", "大", "操指")]
    assert {*guessed("\n".join(lines * 9), "zh")} == {None}
    assert {*guessed('"Ah!" Suddenly, said quietly. Then said, "Oh."\n' * 9, "en")} == {None}


def test_guesses_are_counted_and_only_made_when_asked_for() -> None:
    text = TWO + '"Then we wait."\n\n"For how long?"'
    plain, parsed = (parse_script(source_of(text), "Ann", format="novel", guess=guess) for guess in (False, True))
    assert (plain.guessed, plain.open_share, plain.own) == (0, 0.5, {"Ann": 1})
    assert (parsed.guessed, parsed.open_share, parsed.own) == (2, 0, {"Ann": 2})
    assert parsed.health["speakers_guessed"] == parsed.to_dict()["health"]["speakers_guessed"] == 2


PIECES = ['"Go," said Ann.', '"Go."', "She left.", '"Go," he said.', "“走。”", "小明道：“走。”", "\n\n", "又道：“来。”"]


@given(st.lists(st.sampled_from(PIECES)), st.sampled_from(["en", "zh"]))
def test_a_guess_changes_only_speakers_that_were_not_found(pieces, language) -> None:
    source = source_of(" ".join(pieces) + "\n")
    plain, asked = (read_novel(source, Hints(language, guess=guess)) for guess in (False, True))
    assert [(turn.kind, turn.start, turn.end) for turn in plain] == [
        (turn.kind, turn.start, turn.end) for turn in asked
    ]
    for before, after in zip(plain, asked, strict=True):
        assert after.speaker == before.speaker or (before.speaker is None and after.is_guess)
