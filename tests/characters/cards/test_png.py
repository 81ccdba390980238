import base64
import random
import zlib
from pathlib import Path

import pytest
from PIL import Image

from rolellm.characters.cards.card import load_card, parse_card, save_card
from rolellm.core.errors import CardError

from .conftest import WritePng, chunk, make_card, text_chunk

OLD, NEW = text_chunk("chara", make_card(first_mes="Old.")), text_chunk("ccv3", make_card("v3", first_mes="New."))
HUGE = 2**31 - 1
BOMB = zlib.compress(bytes(50_000_000), 9)
IN_LINES = chunk(b"tEXt", b"Chara\0" + base64.encodebytes(make_card(first_mes="Old.")))
PACKED = chunk(b"zTXt", b"chara\0\0" + zlib.compress(base64.b64encode(make_card(first_mes="Old."))))


@pytest.mark.parametrize(
    ("chunks", "first_mes", "note"),
    [
        pytest.param([IN_LINES], "Old.", "", id="base64 in lines"),
        pytest.param([OLD, NEW], "New.", "", id="V3 wins over V2"),
        pytest.param([OLD, chunk(b"tEXt", b"ccv3\0!!!")], "Old.", "`ccv3` text is not base64", id="V3 is broken"),
    ],
)
def test_a_card_is_read(chunks: list[bytes], first_mes: str, note: str, write_png_file: WritePng) -> None:
    card = load_card(write_png_file(*chunks))
    assert card.first_mes == first_mes
    assert any(note in text for text in card.notes) if note else card.notes == ()


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        pytest.param([chunk(b"tEXt", b"Comment\0hello")], "a picture without a card", id="another text"),
        pytest.param([chunk(b"tEXt", b"chara\0\xff\xfe")], "not base64", id="not base64"),
        pytest.param([chunk(b"tEXt", b"chara\0" + b"QUJD" * 7_500_000)], "bytes of JSON, the maximum", id="30 MB"),
        pytest.param([chunk(b"tEXt", b"a\0" + b"QUJD" * 10_000_000)] * 2, "cut off or damaged", id="80 MB of texts"),
        pytest.param([chunk(b"tEXt", b"chara\0e30=", length=HUGE)], "damaged", id="length lies, long"),
        pytest.param([chunk(b"tEXt", b"chara\0e30=", checksum=7)], "damaged", id="false checksum"),
        pytest.param([OLD, chunk(b"zTXt", b"chara\0\0" + BOMB)], "damaged", id="bomb in zTXt"),
        pytest.param([OLD, chunk(b"iTXt", b"ccv3\0\1\0\0\0" + BOMB)], "damaged", id="bomb in iTXt"),
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


@pytest.mark.parametrize("size", [(HUGE, HUGE), (10_000, 10_000)])
def test_a_picture_that_claims_to_be_huge_is_refused(size: tuple[int, int], write_png_file: WritePng) -> None:
    with pytest.raises(CardError, match="too large"):
        load_card(write_png_file(OLD, size=size))


def test_cut_off_anywhere_and_any_flipped_bit_is_refused(write_png_file: WritePng, tmp_path: Path) -> None:
    whole = bytearray(write_png_file(text_chunk("chara", make_card())).read_bytes())
    part = tmp_path / "part.png"
    draw = random.Random(5)
    for end in [*range(60), *draw.sample(range(60, len(whole)), 60)]:
        part.write_bytes(whole[:end])
        with pytest.raises(CardError):
            load_card(part)
    for _ in range(300):
        # Pillow does not look into the end's chunk, which holds nothing.
        bit = draw.randrange(8 * (len(whole) - 12))
        whole[bit // 8] ^= 1 << bit % 8
        part.write_bytes(whole)
        with pytest.raises(CardError):
            load_card(part)
        whole[bit // 8] ^= 1 << bit % 8


def test_a_picture_keeps_its_pixels_and_texts_and_loses_other_cards(write_png_file: WritePng, tmp_path: Path) -> None:
    asset = chunk(b"tEXt", b"chara-ext-asset_:a\0QUJD")
    file = write_png_file(text_chunk("Chara", make_card(name="Old")), asset, text_chunk("ccv3", make_card("v3")))
    value = parse_card(make_card("v3", name="New")).raw
    # Onto itself.
    save_card(file, value, file)
    with Image.open(file) as picture:
        assert picture.size == (1, 1)
        texts = picture.text  # type: ignore[attr-defined]
    assert sorted(texts) == ["ccv3", "chara", "chara-ext-asset_:a"]
    assert load_card(file).raw == value
    older = parse_card(base64.b64decode(texts["chara"]))
    assert (older.spec, older.name) == ("v2", "New")
    before = file.read_bytes()
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(before[:-20])
    with pytest.raises(CardError, match=r"damaged\.png"):
        save_card(file, value, damaged)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.png", "damaged.png"]


def test_an_animated_picture_stays_animated(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), (shade, 0, 0)) for shade in (0, 100, 200)]
    frames[0].save(tmp_path / "in.png", save_all=True, append_images=frames[1:])
    save_card(tmp_path / "out.png", parse_card(make_card("v3")).raw, tmp_path / "in.png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.n_frames == 3  # type: ignore[attr-defined]
    assert load_card(tmp_path / "out.png").name == "Ada Fenn"
