"""Reads a script's file: decoded, HTML crumbs and invisible characters removed, each offset kept."""

from __future__ import annotations

import codecs
import html
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rolellm.characters.scripts.reading import ScriptSource, load_script_patterns
from rolellm.core.errors import ScriptError
from rolellm.core.foreign import read_limited

# What is guessed where a file is not UTF-8; the last two have characters more than Big5.
_GUESSED: Final = [
    *("gb18030", "big5", "cp1252", "utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be"),
    *("big5hkscs", "cp950"),
]
_FOREIGN: Final = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a ZIP archive, as Word and EPUB files are",
    b"{\\rtf": "an RTF document",
}
_SAMPLE: Final = 1 << 16
#: The largest script, in bytes.
_LARGEST: Final = 1 << 28
#: The longest line, in characters: all of Shakespeare has 5.4 million. Readers copy a line several times.
_LONGEST_LINE: Final = 1 << 22
_LONG_LINE: Final = re.compile(rf"^.{{{_LONGEST_LINE + 1}}}", re.MULTILINE)
_NAME_IT: Final = (
    "If it is a text at all, name its encoding (--set encoding=…), such as gb18030, big5, utf-16 or cp1252; or save it "
    "as UTF-8"
)


def _guess_encoding(data: bytes, path: Path | None) -> tuple[str, str | None]:
    """The encoding of a file, and its text where that is known then."""
    for start, kind in _FOREIGN.items():
        if data.startswith(start):
            raise ScriptError(f"this is {kind}, not a text; save it as plain text first", path=path)
    try:
        if b"\0" not in data[:_SAMPLE]:
            name = "utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8"
            return name, data.decode(name)
    except UnicodeDecodeError as error:
        # With a few broken bytes it would be guessed to be something else, and read as nonsense.
        start_around = max(0, error.start - _SAMPLE)
        around = data[start_around : error.start + _SAMPLE].decode("utf-8", errors="replace")
        if sum(character > "\x7f" for character in around) > 21 * around.count("\ufffd"):
            raise ScriptError(
                f"UTF-8 except for damaged bytes ({error}). Fix or cut it there, or name its encoding "
                "(--set encoding=…)",
                path=path,
            ) from error
    from charset_normalizer import from_bytes

    # It gives up on some short Chinese texts.
    best = from_bytes(data, cp_isolation=_GUESSED).best()
    if best is None:
        return "gb18030", None
    return str(best.encoding).replace("_", "-"), None


_NEWLINES: Final = "\r\x0b\x0c\x85\u2028\u2029"
_CRUMBS: Final = load_script_patterns("crumbs")
_HIDDEN_ONE: Final = _CRUMBS.pop("hidden")
_INTERESTING: Final = re.compile(f"[<&{{{_NEWLINES}{_HIDDEN_ONE.pattern[1:]}")
_XML: Final = re.compile(r"<(TEI|FinalDraft)\b")
_SPELLED: Final = {"line": "\n", "part": "\n\n", "head": "\n\n***\n\n", "stage": "[", "staged": "]\n"} | {
    "slug": "\n\n.",
    "cut": "\n\n> ",
    "told": "\n\n!",
}

# Lists and quotations of Markdown, as converters of documents write them: those that tell that a text is made of them.
_MARKED: Final = re.compile(r"^(?:[-*] (?=[^\n:：]{1,40}[:：]|\[)|>)", re.MULTILINE)
_MARK: Final = re.compile(r"[-*] |> ?")

_GUTENBERG: Final = re.compile(
    r"^\*\*\* ?(?:START|(?P<end>END)) OF TH(?:E|IS) PROJECT GUTENBERG[^\n]{0,200}\n?", re.MULTILINE
)
# What is longer than Project Gutenberg's license and preamble together is a book that lacks its START or END line.
_LONGEST_LICENSE: Final = 50_000


def read_source(path: str | Path, encoding: str | None = None) -> ScriptSource:
    """Read a script's file.

    Args:
        path: The file.
        encoding: Its encoding; detected by default among UTF-8, UTF-16, UTF-32, GB18030, Big5 and Windows-1252.

    Raises:
        ScriptError: When the file does not exist, or is not text in that encoding; says what was found.
    """
    file = Path(path)
    data = read_limited(file, _LARGEST, error=ScriptError)
    name, text = (encoding, None) if encoding else _guess_encoding(data, file)
    try:
        if text is None:
            text = data.decode(name)
    except (LookupError, ValueError) as error:
        problem = "the encoding could not be detected"
        if encoding:
            problem = f"this cannot be read as {name!r:.60} ({error})"
        raise ScriptError(f"{problem}. {_NAME_IT}", path=path) from error
    if encoding is None and "\0" in text[:_SAMPLE]:
        raise ScriptError("zero bytes: this is not a text file; give a plain text", path=path)
    source = make_source(text, encoding=name, path=file)
    long = _LONG_LINE.search(source.text)
    if long:
        number = source.text.count("\n", 0, long.start()) + 1
        problem = f"a line has over {_LONGEST_LINE:,} characters, the maximum; put each speech on a line of its own"
        raise ScriptError(problem, path=path, line=number)
    return source


def make_source(decoded: str, *, encoding: str = "utf-8", path: Path | None = None) -> ScriptSource:
    r"""A text as readers get it; offsets are places in that text.

    Paragraph tags and ``<br>`` become newlines, other tags of pages go, entities become their characters. Project
    Gutenberg's preambles and licenses are left out; the file may hold several books.

    >>> make_source("<p>&ldquo;Hi,&rdquo; he\r\nsaid.</p>").text
    '\n“Hi,” he\nsaid.\n'
    """
    pieces: list[str] = []
    offsets, starts, ends = array("q"), array("q"), array("q")
    length = 0

    def take(piece: str, start: int, end: int = -1) -> None:
        nonlocal length
        pieces.append(piece)
        offsets.append(length)
        starts.append(start)
        ends.append(end)
        length += len(piece)

    at, interesting = 0, _INTERESTING
    full_lines = len(re.findall(r"^.*\S", decoded, re.MULTILINE))
    if 3 * len(_MARKED.findall(decoded)) > full_lines:
        interesting = re.compile(f"^(?:{_MARK.pattern})|{_INTERESTING.pattern}", re.MULTILINE)
    kind = _XML.search(decoded, 0, _SAMPLE)
    crumbs = _CRUMBS[kind[1].lower() if kind else "page"]
    for book_start, stop in _find_books(decoded):
        at = max(at, book_start)
        for match in interesting.finditer(decoded, at, stop):
            offset = match.start()
            if offset < at:
                continue
            crumb = crumbs.match(decoded, offset, stop) or _MARK.match(decoded, offset, stop)
            spelling = _spell_crumb(crumb) if crumb else None
            if crumb and spelling is not None:
                take(decoded[at:offset], at)
                if spelling:
                    take(spelling, offset, crumb.end())
                at = crumb.end()
        take(decoded[at:stop], at)
        at = stop
    take("", at)
    return ScriptSource("".join(pieces), offsets, starts, ends, len(decoded), encoding, path)


def _spell_crumb(crumb: re.Match[str]) -> str | None:
    """Spell a crumb as text; None for an unknown entity, which stays as it is."""
    groups = crumb.groupdict()
    if groups.get("name"):
        name = re.sub("<[^<>]*>", "", groups["name"]).strip(" .:,;\n")
        return f"\n\n{name}:\n"
    if groups.get("cue"):
        words = re.sub("<[^<>]*>", "", groups["cue"]).split()
        return f"\n\n@{' '.join(words).upper()}"
    if not groups.get("entity"):
        return _SPELLED.get(crumb.lastgroup or "", "")
    character = html.unescape(groups["entity"]).replace("\xa0", " ")
    # No entity has more than two.
    if len(character) > 2:
        return None
    if character in _NEWLINES:
        return "\n"
    return _HIDDEN_ONE.sub("", character)


def _find_books(decoded: str) -> Iterator[tuple[int, int]]:
    """Find the books of a file, without the text that Project Gutenberg puts around them."""
    at, inside = 0, False
    for mark in _GUTENBERG.finditer(decoded):
        if inside or mark.start() - at > _LONGEST_LICENSE:
            yield at, mark.start()
        at, inside = mark.end(), mark["end"] is None
    if inside or at == 0 or len(decoded) - at > _LONGEST_LICENSE:
        yield at, len(decoded)
