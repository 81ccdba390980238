import base64
import random
import struct
import zlib
from pathlib import Path

import pytest

from rolellm.characters.cards.card import parse_card
from rolellm.characters.cards.containers import read_png, write_png
from rolellm.characters.cards.folder import load_card
from rolellm.core.errors import CardError

from .conftest import WritePng, chunk, make_card, text_chunk

OLD, NEW = text_chunk("chara", make_card(first_mes="Old.")), text_chunk("ccv3", make_card("v3", first_mes="New."))


HUGE = 2**31 - 1
BOMB = zlib.compress(bytes(50_000_000), 9)
BOMBS = [chunk(b"zTXt", b"chara\0\0" + BOMB), chunk(b"iTXt", b"ccv3\0\1\0\0\0" + BOMB), chunk(b"iCCP", b"x\0\0" + BOMB)]
IN_LINES = chunk(b"tEXt", b"chara\0" + base64.encodebytes(make_card(first_mes="Old.")))


@pytest.mark.parametrize(
    ("chunks", "first_mes", "note"),
    [
        pytest.param([IN_LINES], "Old.", "", id="base64 in lines"),
        pytest.param([OLD, NEW], "New.", "", id="V3 wins over V2"),
        pytest.param([OLD, chunk(b"tEXt", b"ccv3\0!!!")], "Old.", "`ccv3` chunk is not base64", id="V3 is broken"),
        pytest.param([OLD, *[text_chunk("chara", make_card())] * 50], "Old.", "50 more card chunks", id="the first"),
        pytest.param([*BOMBS, OLD], "Old.", "never decompressed", id="bombs that are not unpacked"),
    ],
)
def test_of_several_cards_one_counts_and_it_says_so(
    chunks: list[bytes], first_mes: str, note: str, write_png_file: WritePng, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_png_file(*chunks, size=(HUGE, HUGE))
    for name in ("decompress", "decompressobj"):
        monkeypatch.delattr(zlib, name)
    card = load_card(file)
    assert card.first_mes == first_mes
    assert any(note in text for text in card.notes) if note else card.notes == ()


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        pytest.param([chunk(b"tEXt", b"Comment\0hello")], "a picture without a card", id="another text"),
        pytest.param([chunk(b"tEXt", b"chara\0\xff\xfe")], "not base64", id="not base64"),
        pytest.param([chunk(b"tEXt", b"chara\0QUJD")], "not valid JSON", id="base64 of no JSON"),
        pytest.param([chunk(b"tEXt", b"chara\0" + b"QUJD" * 12_500_000)], "50,000,000 bytes of base64", id="50 MB"),
        pytest.param(
            [chunk(b"tEXt", b"chara\0e30=", length=HUGE)], "no valid chunk at byte 33", id="length lies, long"
        ),
        pytest.param([chunk(b"tEXt", b"chara\0e30=", checksum=7)], "no valid chunk", id="false checksum"),
        pytest.param([b"\0\0\0\0\x1b[2J\0\0\0\0"], "no valid chunk", id="no chunk type"),
        pytest.param(BOMBS[:1], "`chara` chunk is zTXt, which is never decompressed", id="card in zTXt"),
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


def test_thousands_of_chunks_are_read_and_too_many_refused(write_png_file: WritePng) -> None:
    many = chunk(b"tEXt", b"a\0b") * 20_000
    assert load_card(write_png_file(many, text_chunk("chara", make_card()))).name == "Ada Fenn"
    with pytest.raises(CardError, match="over 100,000 chunks"):
        load_card(write_png_file(chunk(b"teST", b"") * 100_001))


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
