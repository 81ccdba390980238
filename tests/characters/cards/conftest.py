"""Cards made on the spot, and PNGs made by hand."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

from rolellm.characters.cards.card import Card, parse_card
from rolellm.characters.cards.convert import read_as_character
from rolellm.core.records import Profile

FIELDS: dict[str, Any] = {
    "name": "Ada Fenn",
    "description": "{{char}} keeps a lighthouse.",
    "personality": "dry, exact",
    "scenario": "A storm. {{user}} knocks.",
    "first_mes": "Who's there, <USER>?",
    "mes_example": (
        "<START>\n{{user}}: hi\n{{char}}: Count the steps.\nAll 212.\n<START>\n*Dawn.*\n<user>: Tea?\nAda Fenn: Please."
    ),
    "creator_notes": "",
    "system_prompt": "Stay in character.",
    "post_history_instructions": "",
    "alternate_greetings": ["You again.", "<BOT> nods."],
    "tags": ["sea"],
    "creator": "nobody",
    "character_version": "1.0",
    "extensions": {"depth": {"prompt": "x"}},
    "character_book": {
        "extensions": {},
        "entries": [
            {"keys": ["lamp"], "content": "The lamp.", "extensions": {}, "enabled": True, "insertion_order": 2},
            {"keys": ["fog"], "content": "The fog.", "extensions": {"f": 1}, "enabled": True, "insertion_order": 1},
            {"keys": ["off"], "content": "Unused.", "extensions": {}, "enabled": False, "insertion_order": 0},
        ],
    },
}


def make_card(spec: str = "v2", **replaced: Any) -> bytes:
    """The JSON of a card; keyword arguments replace fields, None takes one out, `spec` is v1, v2 or v3."""
    data = {name: value for name, value in (FIELDS | replaced).items() if value is not None}
    heads = {"v2": ("chara_card_v2", "2.0"), "v3": ("chara_card_v3", "3.0")}
    if spec == "v1":
        return json.dumps(data).encode()
    head, version = heads[spec]
    if spec == "v3":
        data.setdefault("group_only_greetings", [])
        if "character_book" not in replaced:
            entries = [{**entry, "use_regex": False} for entry in data["character_book"]["entries"]]
            data["character_book"] = {**data["character_book"], "entries": entries}
    return json.dumps({"spec": head, "spec_version": version, "data": data}).encode()


def chunk(kind: bytes, data: bytes, *, length: int | None = None, checksum: int | None = None) -> bytes:
    """A chunk of a PNG; its length and checksum can be made false."""
    found = zlib.crc32(kind + data) if checksum is None else checksum
    return struct.pack(">I", len(data) if length is None else length) + kind + data + struct.pack(">I", found)


def text_chunk(keyword: str, data: bytes) -> bytes:
    """A card in a PNG."""
    return chunk(b"tEXt", keyword.encode() + b"\0" + base64.b64encode(data))


def read_card(raw: bytes, **options: Any) -> tuple[Card, Profile]:
    """A card, and the character that it becomes."""
    card = parse_card(raw)
    return card, read_as_character(card, **options).character


def write_png(file: Path, *chunks: bytes, size: tuple[int, int] = (1, 1)) -> Path:
    """Write a PNG of one point with chunks before its IDAT."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0"))
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + pixels + chunk(b"IEND", b""))
    return file
