"""Files of scripts as text: encodings found out, crumbs gone, and every character's place in the source kept."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.characters.scripts.source import _NEWLINES, make_source, read_source
from rolellm.core.errors import ScriptError

ENGLISH = "MARY:\nIt’s a fine café — isn’t it? “Señor,” £5…\n"
SIMPLIFIED = "猴王道：“我是齐天大圣孙悟空，你是何人？”那人答道：“在下是东海龙王敖广。”\n"
GUTENBERG = "THE PROJECT GUTENBERG EBOOK A ***"
TRADITIONAL = "猴王道：「我是齊天大聖孫悟空，你是何人？」那人答道：「在下是東海龍王敖廣。」\n"


@pytest.mark.parametrize("times", [1, 400], ids=["short", "long"])
@pytest.mark.parametrize(
    ("text", "codec", "told"),
    [
        pytest.param(ENGLISH, "cp1252", "cp1252", id="windows-1252"),
        pytest.param(SIMPLIFIED, "gb18030", "gb18030", id="gb18030"),
        pytest.param(TRADITIONAL + "碁\n", "cp950", None, id="big5 of windows"),
        pytest.param(ENGLISH, "utf-16-le", "utf-16-le", id="utf-16 without a mark"),
    ],
)
def test_encodings_are_found_out(tmp_path: Path, text: str, codec: str, told: str | None, times: int) -> None:
    file = tmp_path / "script.txt"
    file.write_bytes((text * times).encode(codec))
    source = read_source(file)
    assert source.text == text * times
    assert told is None or source.encoding == told
    assert file.read_bytes().decode(source.encoding) == text * times


@pytest.mark.parametrize(
    ("data", "encoding", "words"),
    [
        pytest.param("悟空".encode("gb18030"), "utf-8", ["'utf-8'", "position 0", "encoding="], id="wrong"),
        pytest.param(b"Ada\0: Hm.", None, ["zero bytes"], id="zeros"),
        pytest.param(b"%PDF-1.7 ...", None, ["a PDF", "plain text"], id="pdf"),
        pytest.param(bytes(range(256)) * 40, None, ["could not be detected", "name its encoding"], id="binary"),
        pytest.param(("悟空" * 50).encode()[:-1] + b"\n", None, ["damaged bytes", "position 297"], id="cut"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, encoding: str | None, words: list[str]) -> None:
    file = tmp_path / "script.txt"
    file.write_bytes(data)
    with pytest.raises(ScriptError) as caught:
        read_source(file, encoding)
    for word in (*words, str(file)):
        assert word in str(caught.value)


def test_a_line_as_long_as_a_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_text("Ada: Hello.\n" + "x" * ((1 << 22) + 1), encoding="utf-8")
    with pytest.raises(ScriptError, match=r"script\.txt:2: a line has over 4,194,304 characters"):
        read_source(file)
    file.write_text("x" * (1 << 22) + "\n" + "x" * (1 << 22), encoding="utf-8")
    assert read_source(file).length == (1 << 23) + 1


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.txt"
    file.write_bytes(data)
    try:
        source = read_source(file)
    except ScriptError:
        return
    assert len(data.decode(source.encoding)) == source.length


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        pytest.param("<p>one</p><p>two</p>", "\none\n\ntwo\n", id="paragraphs"),
        pytest.param("one<br>\r\ntwo<BR/>three", "one\ntwo\nthree", id="a break and its newline are one"),
        pytest.param("2 < 3 > 1 <v Bob>x</v> <3 <unknown>", "2 < 3 > 1 <v Bob>x <3 <unknown>", id="brackets as text"),
        pytest.param("a<!-- b\nc -->d<script>e</script>f<style>g</style>h", "adfh", id="what pages hide"),
        pytest.param("a\u200bb\u202ec\ufeffd\x00e\x1b[31mf\U000e0041g", "abcde[31mfg", id="unseen characters"),
        pytest.param(f"x\n*** START OF {GUTENBERG}\nbody\n*** END OF {GUTENBERG}\ny", "body\n", id="gutenberg"),
    ],
)
def test_crumbs(raw: str, clean: str) -> None:
    assert make_source(raw).text == clean


_CRUMBS = (
    "<p>|</p>|<br>|<br />\r\n|&nbsp;|&ldquo;|&amp;|&#39;|\r\n|\r|\u200b|\u202e|<|&|&x|<i>|<!--|-->|<script>|</script>"
    "|悟|空|a|b| |\n|\U0001f600"
)
CRUMBS = st.lists(st.sampled_from(_CRUMBS.split("|")), max_size=40).map("".join)


@given(CRUMBS | st.text(max_size=60))
def test_every_character_knows_its_place(raw: str) -> None:
    source = make_source(raw)
    starts = [source.place(place, place)[0] for place in range(len(source.text) + 1)]
    assert starts == sorted(starts)
    for place, character in enumerate(source.text):
        start, end = source.place(place, place + 1)
        spelled = raw[start:end]
        if character != "\n":
            assert spelled == character or spelled.startswith("&")
        else:
            assert spelled[:1] in tuple("\n<&" + _NEWLINES)
    # What was dropped is no part of a span, unless it stands inside.
    assert source.place(0, len(source.text))[1] <= source.length


def test_openings_that_are_never_closed_are_looked_for_once() -> None:
    """Once each would take minutes."""
    source = make_source("<!--" * 600_000 + "<script>" * 300_000)
    assert source.text == "<!--" * 600_000
