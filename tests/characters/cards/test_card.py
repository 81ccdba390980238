"""Cards in every file: JSON, PNG, CHARX and a character's folder, what is read of them and what is refused."""

import base64
import json
import random
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rolellm.characters.cards import card as card_module
from rolellm.characters.cards.card import MAX_CARD, load_card, parse_card, save_card
from rolellm.characters.folder import export_card, import_card, read_character
from rolellm.core.errors import CardError, SettingsError

from .conftest import chunk, make_card, text_chunk, write_png

# --- JSON


def test_a_card_without_a_spec_is_one_of_v2() -> None:
    assert parse_card(b'{"data": {"name": "A"}}').spec == "v2"


def test_a_wrong_type_that_nothing_depends_on_is_noted() -> None:
    card = parse_card(make_card("v3", tags="sea"))
    assert card.tags == ()
    assert any("`data.tags`" in note and "stays in the card" in note for note in card.notes)


def test_thousands_of_odd_entries_do_not_make_thousands_of_notes() -> None:
    entries = [{"content": "a", "insertion_order": "first"}] * 5000
    card = parse_card(make_card(character_book={"entries": entries}))
    assert len(card.entries) == 5000
    assert len(card.notes) == 21
    assert card.notes[-1] == "and 4,980 more such notes"


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
names = st.sampled_from(
    ["name", "description", "mes_example", "alternate_greetings", "character_book", "entries", "tags"]
)
objects = st.dictionaries(names, st.one_of(values, st.dictionaries(names, values, max_size=3)), max_size=6)


@given(objects, st.sampled_from([None, "chara_card_v2", "chara_card_v3"]))
def test_any_object_is_a_card_or_refused(data: dict[str, Any], spec: str | None) -> None:
    try:
        parse_card(json.dumps({"spec": spec, "data": data}).encode())
    except CardError as error:
        assert str(error).isprintable()


# --- CHARX


ICON = "assets/icon/images/main.png"


def write(file: Path, *members: tuple[str, bytes], before: bytes = b"") -> Path:
    with file.open("wb") as stream:
        stream.write(before)
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in members:
                archive.writestr(name, content)
    return file


def members(file: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


@pytest.fixture
def card() -> bytes:
    return make_card("v3", assets=[{"type": "icon", "uri": f"embeded://{ICON}", "name": "main", "ext": "png"}])


@pytest.mark.parametrize("before", [b"", b"\xff\xd8\xff\xe0 a picture"])
def test_a_charx_goes_in_and_out_with_its_assets(tmp_path: Path, card: bytes, before: bytes) -> None:
    parts = ((ICON, b"pixels"), ("card.json", card), ("module.bin", b"\0\1"))
    import_card(write(tmp_path / "ada.charx", *parts, before=before), tmp_path / "ada")
    assert read_character(tmp_path / "ada").role == "Ada Fenn"
    assert (tmp_path / "ada" / "card.json").read_bytes() == card
    export_card(tmp_path / "ada", tmp_path / "out.charx")
    written = dict(members(tmp_path / "out.charx"))
    assert json.loads(written.pop("card.json")) == json.loads(card)
    assert list(written.items()) == [parts[0], parts[2]]


def test_other_cards_become_charx_and_charx_other_cards(tmp_path: Path, card: bytes) -> None:
    (tmp_path / "v2.json").write_bytes(make_card())
    import_card(tmp_path / "v2.json", tmp_path / "ada")
    export_card(tmp_path / "ada", tmp_path / "a.charx")
    assert load_card(tmp_path / "a.charx").name == "Ada Fenn"
    import_card(write(tmp_path / "b.charx", ("card.json", card)), tmp_path / "ada", overwrite=True)
    for ending in ("json", "png"):
        export_card(tmp_path / "ada", tmp_path / f"b.{ending}")
        assert load_card(tmp_path / f"b.{ending}").name == "Ada Fenn"
    import_card(tmp_path / "v2.json", tmp_path / "ada", overwrite=True)
    assert not (tmp_path / "ada" / "card.charx").exists()
    assert read_character(tmp_path / "ada").role == "Ada Fenn"


def encrypted(file: Path) -> Path:
    raw = bytearray(file.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        struct.pack_into("<H", raw, raw.index(magic) + flags, 1)
    file.write_bytes(raw)
    return file


# --- PNG


OLD, NEW = text_chunk("chara", make_card(first_mes="Old.")), text_chunk("ccv3", make_card("v3", first_mes="New."))
IN_LINES = chunk(b"tEXt", b"Chara\0" + base64.encodebytes(make_card(first_mes="Old.")))


@pytest.mark.parametrize(
    ("chunks", "first_mes", "note"),
    [
        pytest.param([IN_LINES], "Old.", "", id="base64 in lines"),
        pytest.param([OLD, NEW], "New.", "", id="V3 wins over V2"),
        pytest.param([OLD, chunk(b"tEXt", b"ccv3\0!!!")], "Old.", "`ccv3` text is not base64", id="V3 is broken"),
    ],
)
def test_a_card_is_read(chunks: list[bytes], first_mes: str, note: str, tmp_path: Path) -> None:
    card = load_card(write_png(tmp_path / "card.png", *chunks))
    assert card.first_mes == first_mes
    assert any(note in text for text in card.notes) if note else card.notes == ()


def test_cut_off_anywhere_and_any_flipped_bit_is_refused(tmp_path: Path) -> None:
    part = tmp_path / "part.png"
    whole = bytearray(write_png(part, text_chunk("chara", make_card())).read_bytes())
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


def test_a_picture_keeps_its_pixels_and_texts_and_loses_other_cards(tmp_path: Path) -> None:
    asset = chunk(b"tEXt", b"chara-ext-asset_:a\0QUJD")
    chunks = (text_chunk("Chara", make_card(name="Old")), asset, text_chunk("ccv3", make_card("v3")))
    file = write_png(tmp_path / "card.png", *chunks)
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


# --- refusals


HUGE = 2**31 - 1
BOMB = zlib.compress(bytes(50_000_000), 9)
TEXT, DEEP = b"RIFF1234WEBP\xff", b'{"data":' * 10_000 + b"1" + b"}" * 10_000
BOOK, DIGITS = {"entries": [{"enabled": "no"}]}, b'{"name": ' + b"9" * 5000 + b"}"
#: What is no card: fields of one, the content of a file, the members of a zip or the chunks of a PNG; and a key word.
REFUSED: dict[str, tuple[Any, str]] = {
    "a number for a name": ({"name": 7}, "`data.name` to be a text, found 7"),
    "a number for an entry": ({"character_book": {"entries": [{}, 5]}}, "`data.character_book.entries[1]`"),
    "a word for a truth": ({"character_book": BOOK}, "to be true or false, found 'no'"),
    "over the limit": ({"creator_notes": "x" * MAX_CARD}, f"over {MAX_CARD:,} bytes"),
    "empty": (b"", "not valid JSON"),
    "a list": (b'{"spec": "chara_card_v2", "data": []}', "expected an object `data`"),
    "Agnai": (b'{"name": "x", "scenario": "", "persona": {"kind": "text"}}', "Agnai's own"),
    "no UTF-8": (b'{"name": "\xff"}', "UTF-8"),
    "NaN": (b'{"name": NaN}', "NaN is not a value"),
    "5,000 digits": (DIGITS, "not valid JSON"),
    "10,000 deep": (DEEP, "nested too deep"),
    "no zip": (b"PK\x03\x04" + bytes(40), "damaged, or not a zip"),
    "another picture": (TEXT + bytes(40), "expected a PNG or CHARX"),
    "another zip": (("word/document.xml", b"x"), "a zip without card.json"),
    "a large member": (("card.json", bytes(MAX_CARD + 1)), f"over {MAX_CARD:,}"),
    "another text": ([chunk(b"tEXt", b"Comment\0hello")], "a picture without a card"),
    "not base64": ([chunk(b"tEXt", b"chara\0\xff\xfe")], "not base64"),
    "30 MB": ([chunk(b"tEXt", b"chara\0" + b"QUJD" * 7_500_000)], "bytes of JSON, the maximum"),
    "80 MB of texts": ([chunk(b"tEXt", b"a\0" + b"QUJD" * 10_000_000)] * 2, "cut off or damaged"),
    "a false length": ([chunk(b"tEXt", b"chara\0e30=", length=HUGE)], "damaged"),
    "a false checksum": ([chunk(b"tEXt", b"chara\0e30=", checksum=7)], "damaged"),
    "a bomb in zTXt": ([OLD, chunk(b"zTXt", b"chara\0\0" + BOMB)], "damaged"),
    "a bomb in iTXt": ([OLD, chunk(b"iTXt", b"ccv3\0\1\0\0\0" + BOMB)], "damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_card_is_refused(name: str, tmp_path: Path) -> None:
    content, words = REFUSED[name]
    file = tmp_path / "card"
    if isinstance(content, tuple):
        write(file, content)
    elif isinstance(content, list):
        write_png(file, *content)
    else:
        file.write_bytes(make_card(**content) if isinstance(content, dict) else content)
    with pytest.raises(CardError) as caught:
        load_card(file)
    assert words in str(caught.value) and caught.value.path == file
    assert str(caught.value).isprintable()


def test_what_cannot_be_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(CardError, match="cannot be read"):
            load_card(path)
    for size in ((HUGE, HUGE), (10_000, 10_000)):
        with pytest.raises(CardError, match="too large"):
            load_card(write_png(tmp_path / "card.png", OLD, size=size))
    with pytest.raises(CardError, match="encrypted"):
        load_card(encrypted(write(tmp_path / "a.charx", ("card.json", b"{}"))))
    monkeypatch.setattr(card_module, "_MAX_FILE", 1000)
    with pytest.raises(CardError, match="remove some of its assets"):
        load_card(write(tmp_path / "a.charx", ("card.json", b"{}"), ("zeros", bytes(2000))))


# --- a character's folder


ODD = b'{"z":1.0,"a":1e2,"z":[ ],"\\u0061":"\\u00e9"}'


@pytest.fixture
def raw() -> bytes:
    return make_card(extensions="ODD").replace(b'"ODD"', ODD)


@pytest.fixture
def card_file(raw: bytes, tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "ada.json"
    file.write_bytes(raw)
    return file


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("ending", ["json", "png", "charx"])
def test_a_card_goes_in_and_out_with_all_that_came_with_it(
    ending: str, card_file: Path, raw: bytes, tmp_path: Path
) -> None:
    assert import_card(card_file, tmp_path / "ada") == tmp_path / "ada"
    assert file_names(tmp_path / "ada") == ["card.json", "dialogue.jsonl", "profile.json"]
    assert (tmp_path / "ada" / "card.json").read_bytes() == raw
    out = tmp_path / f"out.{ending}"
    written = export_card(tmp_path / "ada", out)
    assert written.changed == ()
    data = json.loads(raw)["data"]
    del data["character_book"]
    assert {name: load_card(out).data[name] for name in data} == data


def test_a_folder_with_other_things_is_never_written_to(card_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("x")
    with pytest.raises(SettingsError, match="holds other files"):
        import_card(card_file, folder, overwrite=True)
    assert file_names(folder) == ["thesis.txt"]


def test_a_character_is_replaced_only_when_asked(card_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ada"
    import_card(write_png(tmp_path / "card.png", text_chunk("chara", make_card(name="Painted"))), folder)
    assert file_names(folder) == ["card.json", "card.png", "dialogue.jsonl", "profile.json"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="--overwrite"):
        import_card(card_file, folder)
    assert read_character(folder).role == "Painted"
    import_card(card_file, folder, overwrite=True)
    assert read_character(folder).role == "Ada Fenn"
    # The old picture is not the new card's.
    assert file_names(folder) == ["card.json", "dialogue.jsonl", "notes.txt", "profile.json"]


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/passwd", "..", "a/../../b", "C:\\x", "\u202etxt.exe", "-rf ~"])
def test_nothing_is_written_outside_the_folder_whatever_the_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "card.json"
    file.write_bytes(make_card("v3", name=name, nickname=name, assets=[{"uri": name, "name": name, "type": "icon"}]))
    import_card(file, tmp_path / "work" / "out")
    export_card(tmp_path / "work" / "out", tmp_path / "work" / "card.png")
    assert file_names(tmp_path) == ["card.json", "work"]
    assert file_names(tmp_path / "work") == ["card.png", "out"]
    assert file_names(tmp_path / "work" / "out") == ["card.json", "dialogue.jsonl", "profile.json"]


def test_a_link_in_the_folder_is_replaced_not_followed(card_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("mine")
    import_card(card_file, tmp_path / "ada")
    for name in ("profile.json", "dialogue.jsonl", "card.json"):
        (tmp_path / "ada" / name).unlink()
        (tmp_path / "ada" / name).symlink_to(other)
    import_card(card_file, tmp_path / "ada", overwrite=True)
    assert other.read_text() == "mine"


@pytest.mark.parametrize(
    ("out", "options", "says"),
    [
        pytest.param("there.json", {}, "--overwrite", id="there already"),
        pytest.param("folder.json", {"overwrite": True}, "choose another name", id="a folder"),
        pytest.param("ada/profile.json", {"overwrite": True}, "is the character itself", id="the profile"),
        pytest.param("new.json", {"picture": "x.png"}, "a picture goes into a .png", id="a picture for JSON"),
    ],
)
def test_a_target_that_is_none_is_bad_usage(
    out: str, options: dict[str, Any], says: str, card_file: Path, tmp_path: Path
) -> None:
    import_card(card_file, tmp_path / "ada")
    (tmp_path / "there.json").write_text("mine")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(SettingsError, match=says):
        export_card(tmp_path / "ada", tmp_path / out, **options)
    assert (tmp_path / "there.json").read_text() == "mine"
