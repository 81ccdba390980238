import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.cards import card as card_module
from rolellm.characters.cards.card import MAX_CARD, load_card
from rolellm.characters.folder import export_card, import_card, read_character
from rolellm.core.errors import CardError

from .conftest import make_card

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
        warnings = export_card(tmp_path / "ada", tmp_path / f"b.{ending}").warnings
        assert [f"is not copied into a .{ending}; write a .charx" in warning for warning in warnings] == [True]
    import_card(tmp_path / "v2.json", tmp_path / "ada", overwrite=True)
    assert not (tmp_path / "ada" / "card.charx").exists()
    assert read_character(tmp_path / "ada").role == "Ada Fenn"


def encrypted(file: Path) -> Path:
    raw = bytearray(file.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        struct.pack_into("<H", raw, raw.index(magic) + flags, 1)
    file.write_bytes(raw)
    return file


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(lambda file: write(file, ("word/document.xml", b"x")), "a zip without card.json", id="other zip"),
        pytest.param(lambda file: write(file, ("card.json", bytes(MAX_CARD + 1))), f"over {MAX_CARD:,}", id="large"),
        pytest.param(lambda file: encrypted(write(file, ("card.json", b"{}"))), "encrypted", id="encrypted"),
        pytest.param(lambda file: file.write_bytes(b"PK\x03\x04" + bytes(40)), "damaged", id="cut off"),
    ],
)
def test_what_cannot_be_read_is_refused(make: Callable[[Path], Any], says: str, tmp_path: Path) -> None:
    make(tmp_path / "a.charx")
    with pytest.raises(CardError, match=rf"a\.charx: .*{says}"):
        load_card(tmp_path / "a.charx")


def test_a_bomb_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_module, "_MAX_FILE", 1000)
    with pytest.raises(CardError, match="remove some of its assets"):
        load_card(write(tmp_path / "a.charx", ("card.json", b"{}"), ("zeros", bytes(2000))))
