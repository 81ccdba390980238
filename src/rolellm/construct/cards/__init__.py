"""Character cards (SillyTavern V1 to V3, JSON and PNG): read as characters, written with all that came with them."""

from rolellm.construct.cards.card import Card, Entry, Spec, parse_card
from rolellm.construct.cards.convert import Reading, read_as_character
from rolellm.construct.cards.export import Exported, export_character
from rolellm.construct.cards.folder import Written, export_card, import_card, load_card

__all__ = [
    "Card",
    "Entry",
    "Exported",
    "Reading",
    "Spec",
    "Written",
    "export_card",
    "export_character",
    "import_card",
    "load_card",
    "parse_card",
    "read_as_character",
]
