"""What is picked for a question: exchanges by BM25, lore by key and by words."""

from dataclasses import replace

from rolellm.characters.role_prompts import RolePrompts
from rolellm.core.records import Lore, Profile


def test_the_best_come_first_and_without_a_shared_word_the_script_decides(character: Profile) -> None:
    prompts = RolePrompts(character)
    assert prompts.demonstrations("Parrot, who has the captain's map?", 3) == [1, 4, 2]
    assert prompts.demonstrations("Name a prime number.", 2) == [0, 1]


def test_chinese(chinese: Profile) -> None:
    prompts = RolePrompts(chinese)
    assert prompts.demonstrations("河边的磨坊在哪里？", 2) == [1, 0]
    assert [(note.place, note.by) for note in prompts.notes("老农说河水如何？", 2)] == [(0, "key"), (1, "words")]


def test_lore_that_is_constant_or_has_secondary_keys(character: Profile) -> None:
    lore = (
        Lore("The law of the ship.", constant=True),
        Lore("Dawn is cold.", ("dawn",), secondary_keys=("coat",)),
        Lore("Kettles rust.", ("kettle",)),
    )
    prompts = RolePrompts(replace(character, lore=lore))
    told = [
        [(note.place, note.by) for note in prompts.notes(text, 2)]
        for text in ("Dawn is cold?", "The kettle at dawn, in a coat", "Well?")
    ]
    assert told == [[(0, "constant")], [(1, "key"), (2, "key")], [(0, "constant")]]
    assert len(prompts.notes("The kettle at dawn, in a coat", 3)) == 3
