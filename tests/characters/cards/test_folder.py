import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.cards.card import load_card
from rolellm.characters.folder import export_card, import_card, read_character
from rolellm.core.errors import SettingsError

from .conftest import WritePng, make_card, text_chunk

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


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("ending", ["json", "png", "charx"])
def test_a_card_goes_in_and_out_with_all_that_came_with_it(
    ending: str, card_file: Path, raw: bytes, tmp_path: Path
) -> None:
    assert import_card(card_file, tmp_path / "ada") == tmp_path / "ada"
    assert names(tmp_path / "ada") == ["card.json", "dialogue.jsonl", "profile.json"]
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
    assert names(folder) == ["thesis.txt"]


def test_a_character_is_replaced_only_when_asked(card_file: Path, tmp_path: Path, write_png_file: WritePng) -> None:
    folder = tmp_path / "ada"
    png = write_png_file(text_chunk("chara", make_card(name="Painted")))
    import_card(png, folder)
    assert names(folder) == ["card.json", "card.png", "dialogue.jsonl", "profile.json"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="--overwrite"):
        import_card(card_file, folder)
    assert read_character(folder).role == "Painted"
    import_card(card_file, folder, overwrite=True)
    assert read_character(folder).role == "Ada Fenn"
    # The old picture is not the new card's.
    assert names(folder) == ["card.json", "dialogue.jsonl", "notes.txt", "profile.json"]


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/passwd", "..", "a/../../b", "C:\\x", "\u202etxt.exe", "-rf ~"])
def test_nothing_is_written_outside_the_folder_whatever_the_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "card.json"
    file.write_bytes(make_card("v3", name=name, nickname=name, assets=[{"uri": name, "name": name, "type": "icon"}]))
    import_card(file, tmp_path / "work" / "out")
    export_card(tmp_path / "work" / "out", tmp_path / "work" / "card.png")
    assert names(tmp_path) == ["card.json", "work"]
    assert names(tmp_path / "work") == ["card.png", "out"]
    assert names(tmp_path / "work" / "out") == ["card.json", "dialogue.jsonl", "profile.json"]


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
