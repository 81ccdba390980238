import base64
import io
import random
import re
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

from rolellm.characters.cards import containers
from rolellm.characters.cards.card import parse_card
from rolellm.characters.cards.containers import read_png, write_png
from rolellm.characters.cards.folder import load_card
from rolellm.core.errors import CardError

from .conftest import WritePng, chunk, make_card, text_chunk


@pytest.mark.parametrize(
    ("raw", "packed"),
    [
        *((make_card(), text_chunk(keyword, make_card())) for keyword in ("chara", "Chara")),
        *((make_card("v3"), text_chunk(keyword, make_card("v3"))) for keyword in ("ccv3", "CCV3")),
        (make_card(), chunk(b"tEXt", b"chara\0" + base64.encodebytes(make_card()))),
    ],
    ids=["chara", "Chara", "ccv3", "CCV3", "base64 in lines"],
)
def test_a_card_in_a_text_chunk_is_read(raw: bytes, packed: bytes, write_png_file: WritePng) -> None:
    card = load_card(write_png_file(packed))
    assert (card.text.encode(), card.name) == (raw, "Ada Fenn")


OLD, NEW = text_chunk("chara", make_card(first_mes="Old.")), text_chunk("ccv3", make_card("v3", first_mes="New."))


@pytest.mark.parametrize(
    ("chunks", "first_mes", "note"),
    [
        pytest.param([OLD, NEW], "New.", "disagree on first_mes.*V3", id="V3 wins over V2"),
        pytest.param(
            [text_chunk("chara", make_card(first_mes="New.", creator_notes="Backfilled.")), NEW], "New.", "", id="agree"
        ),
        pytest.param([OLD, chunk(b"tEXt", b"ccv3\0!!!")], "Old.", "`ccv3` chunk is not base64", id="V3 is broken"),
        pytest.param(
            [OLD, *[text_chunk("chara", make_card())] * 50], "Old.", "50 more card chunks", id="the first of one name"
        ),
    ],
)
def test_of_several_cards_one_counts_and_it_says_so(
    chunks: list[bytes], first_mes: str, note: str, write_png_file: WritePng
) -> None:
    card = load_card(write_png_file(*chunks))
    assert card.first_mes == first_mes
    assert any(re.search(note, text) for text in card.notes) if note else card.notes == ()


HUGE = 2**31 - 1


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        pytest.param([], "a picture without a card", id="plain PNG"),
        pytest.param([chunk(b"tEXt", b"Comment\0hello")], "without a card", id="another text"),
        pytest.param([chunk(b"tEXt", b"chara" * 100)], "without a card", id="text without a keyword"),
        pytest.param([chunk(b"tEXt", b"chara\0{not base64}")], "not base64", id="not base64"),
        pytest.param([chunk(b"tEXt", b"chara\0\xff\xfe")], "not base64", id="not even text"),
        pytest.param([chunk(b"tEXt", b"chara\0QUJD")], "not valid JSON", id="base64 of no JSON"),
        pytest.param([chunk(b"tEXt", b"chara\0/w==")], "UTF-8", id="base64 of no UTF-8"),
        pytest.param([chunk(b"tEXt", b"chara\0e30=")], "not a character card", id="an empty object"),
        pytest.param([chunk(b"tEXt", b"chara\0e30=", length=HUGE)], "says it has", id="length lies, long"),
        pytest.param([chunk(b"tEXt", b"chara\0e30=", length=3)], "checksum", id="length lies, short"),
        pytest.param([chunk(b"tEXt", b"chara\0e30=", checksum=7)], "checksum", id="false checksum"),
        pytest.param([b"\0\0\0\0\x1b[2J\0\0\0\0"], "expected a chunk's type", id="no chunk type"),
        pytest.param([chunk(b"zTXt", b"chara\0\0" + zlib.compress(b"x"))], "zTXt", id="card in zTXt"),
        pytest.param([chunk(b"iTXt", b"ccv3\0\0\0\0\0e30=")], "iTXt", id="card in iTXt"),
    ],
)
def test_a_png_without_a_card_that_can_be_read_is_refused(
    chunks: list[bytes], says: str, write_png_file: WritePng
) -> None:
    file = write_png_file(*chunks)
    with pytest.raises(CardError, match=says) as caught:
        load_card(file)
    assert caught.value.path == file
    assert str(caught.value).isprintable()


def test_a_png_without_its_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(containers.SIGNATURE + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    with pytest.raises(CardError, match="IHDR first"):
        load_card(file)


def test_cut_off_anywhere_is_refused(write_png_file: WritePng, tmp_path: Path) -> None:
    whole = write_png_file(text_chunk("chara", make_card())).read_bytes()
    part = tmp_path / "part.png"
    for end in [*range(60), *random.Random(4).sample(range(60, len(whole)), 60)]:
        part.write_bytes(whole[:end])
        with pytest.raises(CardError):
            load_card(part)


def test_any_flipped_bit_is_refused(write_png_file: WritePng, tmp_path: Path) -> None:
    raw = make_card()
    whole = bytearray(write_png_file(text_chunk("chara", raw)).read_bytes())
    flipped = tmp_path / "flipped.png"
    draw = random.Random(5)
    for _ in range(300):
        bit = draw.randrange(8 * len(whole))
        whole[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(whole)
        with pytest.raises(CardError):
            load_card(flipped)
        whole[bit // 8] ^= 1 << bit % 8


@pytest.fixture
def no_unpacking(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpacked")

    monkeypatch.setattr(zlib, "decompress", refuse)
    monkeypatch.setattr(zlib, "decompressobj", refuse)


def _peak(file: Path) -> int:
    tracemalloc.start()
    try:
        load_card(file)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("no_unpacking")
def test_a_bomb_of_pixels_or_text_is_never_unpacked(write_png_file: WritePng) -> None:
    bomb = zlib.compress(bytes(50_000_000), 9)
    chunks = (
        chunk(b"zTXt", b"chara\0\0" + bomb),
        chunk(b"iTXt", b"ccv3\0\1\0\0\0" + bomb),
        chunk(b"iCCP", b"x\0\0" + bomb),
        text_chunk("chara", make_card()),
    )
    assert _peak(write_png_file(*chunks, size=(HUGE, HUGE))) < 4_000_000


def test_thousands_of_chunks_are_read_and_too_many_refused(write_png_file: WritePng) -> None:
    many = chunk(b"tEXt", b"a\0b") * 20_000
    assert load_card(write_png_file(many, text_chunk("chara", make_card()))).name == "Ada Fenn"
    with pytest.raises(CardError, match="over 100,000 chunks"):
        load_card(write_png_file(chunk(b"teST", b"") * 100_001))


def test_a_text_chunk_of_50_mb_is_refused_unread(write_png_file: WritePng) -> None:
    file = write_png_file(chunk(b"tEXt", b"chara\0" + b"QUJD" * 12_500_000))
    tracemalloc.start()
    try:
        with pytest.raises(CardError, match=r"50,000,006 bytes of base64"):
            load_card(file)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    with file.open("wb") as stream:
        stream.write(containers.SIGNATURE)
        stream.truncate(containers.MAX_FILE + 1)
    with pytest.raises(CardError, match="a card's picture may have"):
        load_card(file)


def test_a_plain_picture_is_a_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    write_png(tmp_path / "a.png", {"chara": make_card().decode()})
    with image.open(io.BytesIO((tmp_path / "a.png").read_bytes())) as picture:
        picture.load()
        assert picture.size == (400, 600)
        assert base64.b64decode(picture.text["chara"]) == make_card()


def test_a_given_picture_keeps_its_chunks_in_order_and_loses_other_cards(
    write_png_file: WritePng, tmp_path: Path
) -> None:
    other = (chunk(b"gAMA", struct.pack(">I", 45455)), chunk(b"tEXt", b"chara-ext-asset_:a\0QUJD"))
    packed = chunk(b"zTXt", b"Chara\0\0" + zlib.compress(b"x"))
    old = write_png_file(
        other[0],
        text_chunk("chara", make_card(name="Old")),
        packed,
        other[1],
        text_chunk("ccv3", make_card("v3")),
        tail=b"more",
    )
    out = tmp_path / "out.png"
    write_png(out, {"chara": make_card(name="New").decode()}, old)
    new = text_chunk("chara", make_card(name="New"))
    assert out.read_bytes() == write_png_file(other[0], new, other[1], name="bare.png").read_bytes()
    assert parse_card(read_png(out)[0]["chara"]).name == "New"


def test_a_picture_can_be_written_onto_itself_and_a_damaged_one_leaves_what_was_there(
    write_png_file: WritePng, tmp_path: Path
) -> None:
    file = write_png_file(text_chunk("chara", make_card()))
    write_png(file, {"chara": make_card(name="New").decode()}, file)
    assert load_card(file).name == "New"
    before = file.read_bytes()
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(before[:-20])
    with pytest.raises(CardError, match=r"damaged\.png"):
        write_png(file, {"chara": "{}"}, damaged)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.png", "damaged.png"]
