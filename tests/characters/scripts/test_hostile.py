"""No text makes a reader of scripts take more than about twice the time for twice the text."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from rolellm.characters.scripts.parse import FORMATS, ScriptSummary, detect_format, read_script, select_role
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import make_source, read_source
from rolellm.core.errors import RoleLLMError, ScriptError

#: What patterns of the readers look for, and what they run over.
ATOMS = (
    *(" ", "\t", "\n", "\n\n", "\u3000", "\u2028", "a", "A ", "JOHN", "JOHN: ", "John ", "JOHN. ", "甲", "王说"),
    *("，", "。", "：", ":", ",", ".", "; ", "—", "-", "*", "_", "#", "=", "(", ")", "[", "]", "（", "【", "〔", "{"),
    *("}", "<", "“", "”", '"', "'", "‘", "「", "«", "<p>", "<p ", "<!--", "<script>", "<v J>", "&amp;", "{\\", "/*"),
    *("[[", "12:34 ", "1/2/23, ", "1. ", "ACT I\n", "Enter ", "INT. ", "said ", "of ", "the ", "I am ", ", called "),
    *("人称", "a,b\n", "<Paragraph ", 'Type="Character" ', "<speaker", "<stage>", "define e = Character("),
    *("(MORE)\n", "CUT TO ", "@", "{name}: well\n", "{name}：“走。”\n", "[{name}] x\n"),
    *("{name}\nwell\n\n", "“Go,” said {name}. "),
)
OPENINGS = {
    "play": "JOHN. Well met.\n\nMARY. Ay.\n\nJOHN. Good.\n\n",
    "screenplay": "INT. A - DAY\n\nJOHN\nWell.\n\nMARY\nAy.\n\nJOHN\nGo.\n\n",
    "transcript": "John: Well.\nMary: Ay.\nJohn: Go.\n",
    "novel": "“Well,” said John.\n\n“Ay,” said Mary.\n\n",
    "subtitles": "1\n00:00:01,000 --> 00:00:02,000\nJOHN: Well.\n\n",
    "table": "speaker,text\nJohn,well\nMary,ay\n",
    "detection": "John: Well.\nMary: Ay.\nJohn: Go.\n",
    "page": "",
    "Final Draft": "<FinalDraft><Content>",
    "TEI": "<TEI><text>",
}


def name_of(number: int) -> str:
    """One of many names, in Latin letters and in Chinese characters."""
    letters = "".join(chr(ord("A") + number // 26**place % 26) for place in range(4))
    return letters if number % 2 else chr(0x4E00 + number) + "人"


def make_text(opening: str, parts: Sequence[str], size: int) -> str:
    """A text that opens as its format does, and then says the same over and over, each time of another name."""
    once, again = parts[0], "".join(parts[1:])
    text, number = [opening, once.replace("{name}", "Bob")], 0
    while (size := size - len(again)) > 0:
        text.append(again.replace("{name}", name_of(number)))
        number += 1
    return "".join([*text, "\nX\n"])


def read(kind: str, text: str) -> None:
    """Read a text as one of `OPENINGS`."""
    if kind in FORMATS:
        for language in ("en", "zh"):
            reading = read_script(make_source(text), ("John",), format=kind, language=language)
            ScriptSummary(select_role(("John",), reading), Path("out.jsonl")).tables()
    elif kind == "detection":
        detect_format(make_source(text).text, ReaderHints("en", ("John",)))
    else:
        make_source(text)


def seconds(action: Callable[[], object]) -> float:
    """The processor time that an action takes; a text may be refused."""
    start = time.process_time()
    with suppress(RoleLLMError):
        action()
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPENINGS)
def test_time_grows_with_the_text(kind: str) -> None:
    draw = random.Random(kind)
    cases = [("", *draw.choices(ATOMS, k=draw.choice((1, 1, 2, 3)))) for _ in range(30)]
    cases += [
        ("<Paragraph ", 'Type="Character" '),
        ("", " "),
        ("", "\n"),
        ("«", " "),
        ("John ", " "),
        ("", "{name}：“走。”\n"),
    ]
    # What is loaded once, such as the words of Chinese, is loaded now.
    seconds(lambda: read(kind, make_text(OPENINGS[kind], cases[-1], 24_000)))
    slow = []
    for parts in cases:
        texts = [make_text(OPENINGS[kind], parts, size) for size in (3_000, 24_000)]
        short, long = (seconds(lambda text=text: read(kind, text)) for text in texts)
        # Eight times the text, and room for what is measured on a busy machine; a square would be 64.
        if long > 0.5 + 20 * short:
            slow.append((parts, short, long))
    assert not slow


@pytest.mark.parametrize("path", ["/dev/zero", "large"])
def test_no_file_is_read_without_end(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolellm.characters.scripts.source._LARGEST", 1 << 20)
    if path == "large":
        path = str(tmp_path / "large.txt")
        Path(path).write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(ScriptError, match="over 1,048,576 bytes"):
        read_source(path)
