import json
import shlex
from functools import partial
from pathlib import Path

import pytest

from rolellm import Character
from rolellm.characters.folder import read_character
from rolellm.characters.roles import find_part
from rolellm.making import scripted

from ...commands import Command, inert

LINES = [
    ("scene", "The top of a tower. Ada counts the boats.", "direction", 0),
    ("Rose", "Aunt Ada, is it late?", "speech", 0),
    ("Ada", "Count the steps, child! Nine past eight.", "speech", 0),
    ("Rose", "And the boat?", "speech", 0),
    ("Ada", "Three days, {role}. [bold]Count the steps, child![/bold]", "speech", 0),
    ("Brom", "Ada never smiles.", "speech", 1),
    ("Ada", "I smiled \x1b[31mon the second\u202e of May.", "speech", 1),
]


@pytest.fixture
def call(command: Command) -> Command:
    return partial(command, "role")


def write(path: Path, lines: list[tuple[str, str, str, int]], alias: str = "KEEPER") -> Path:
    rows = [
        {"role": role, "speaker": alias if role == "Ada" else role, "content": text, "kind": kind, "scene": scene}
        for role, text, kind, scene in lines
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "d.jsonl", LINES)
    (tmp_path / "llm.yaml").write_text("endpoints: [{backend: scripted, rules: quotes}]\n", encoding="utf-8")
    return tmp_path


CARD = {"name": "Ada", "description": "Ada is stern.", "first_mes": "Count!", "personality": "", "scenario": ""}
TALK = "<START>\n{{user}}: Is it late?\n{{char}}: Count the steps, child!\n<START>\n{{char}}: Count the steps, child!\n"


@pytest.fixture
def card(here: Path) -> Path:
    file = here / "ada.json"
    file.write_text(json.dumps({**CARD, "mes_example": TALK}), encoding="utf-8")
    return file


def test_a_cards_own_description_is_kept_unless_asked(card: Path, call: Command) -> None:
    done = call("build", "ada.json", "--llm", "llm.yaml")
    assert done.code == 0, done.err
    assert "Go on with: rolellm instruct ada --llm llm.yaml" in done.out
    shown = call("card", "ada.json", "--json").json
    assert (shown["description"], shown["catchphrases"]) == ("Ada is stern.", ["Count the steps, child!"])
    again = call("build", "ada", "--llm", "llm.yaml", "--json").json
    assert (again["counts"]["catchphrases"], again["spent"]["calls"]) == (1, 0)
    assert call("card", "ada", "--json").json["description"] == "Ada is stern."
    done = call("build", "ada", "--llm", "llm.yaml", "--rewrite")
    assert "You are a person" in done.out
    done = call("card", "ada", "--out", "again.json")
    assert (done.code, "Changed since it was imported: description." in done.out) == (0, True)


@pytest.mark.parametrize("ending", ["json", "png", "charx"])
def test_a_card_is_taken_wherever_a_folder_is(card: Path, command: Command, ending: str) -> None:
    file = f"card.{ending}"
    assert command("role", "card", "ada.json", "--out", file).code == 0
    assert command("role", "card", file, "--json").json["role"] == "Ada" and not Path("card").exists()
    assert command("instruct", file, "--llm", "llm.yaml", "--per-role", "4", "--dry-run").code == 0
    assert not Path("card").exists()
    done = command("instruct", file, "--llm", "llm.yaml", "--per-role", "4")
    assert "Go on with: rolellm respond card --instructions sample --llm llm.yaml" in done.out
    done = command("respond", file, "--instructions", "sample", "--limit", "2", "--llm", "llm.yaml")
    done = command("role", "release", file, "--out", "data", "--json")
    assert done.result["rows"]["instructions-eng/instructions-general.jsonl"] == 2
    assert find_part(file).sheet == read_character("card")
    assert Character.load(file).folder == Path("card")


def test_each_next_step_runs_as_it_is_printed(card: Path, command: Command) -> None:
    """From the card to the data set, twice: the second release has to replace the first."""
    done = command("role", "card", "ada.json", "--out", "ada")
    # The scripted model makes no more pairs of so short a card, so that fewer are asked for.
    for stage in ("build", "instruct", "respond", "release", "audit"):
        # The only line to go on with, or the first of several.
        line = done.out.partition("Go on with:")[2].strip().splitlines()[0]
        words = shlex.split(line)[1:]
        more = {"build": ["--llm", "llm.yaml"], "instruct": ["--per-role", "4"], "respond": ["--limit", "2"]}
        done = command(*words, *more.get(stage, []))
        assert done.code == 0, (line, done.err)
    again = command("respond", "ada", "--instructions", "sample", "--limit", "2", "--llm", "llm.yaml")
    assert "Go on with: rolellm role release ada --out ada-data --overwrite" in again.out


def test_show_is_inert(here: Path, call: Command) -> None:
    value = {
        "role": "Ada\x1b[31m\u202e",
        "language": "en",
        "description": "You are [red]x[/red] \x1b]0;title\x07 {0.__class__}.",
        "catchphrases": ["\u200bCount\x9b2J"],
        "lore": [{"content": f"The lamp\x1b[1m {number}", "keys": ["[b]"], "name": ""} for number in range(10)],
        "aliases": ["\u202eKeeper"],
        "script": "\x07tower",
    }
    (here / "odd").mkdir()
    (here / "odd" / "profile.json").write_text(json.dumps(value), encoding="utf-8")
    done = call("card", "odd")
    assert done.code == 0 and inert(done.out)
    assert "[red]x[/red]" in done.out and "and 2 more" in done.out
    assert call("card", "odd", "--json").json["role"] == "Ada\x1b[31m\u202e"


def test_what_is_wrong_with_a_profile_is_said_and_shown(
    here: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scripted._load_sayings("en"), "second", "She is one who \x1b[31mhas [bold]47[/bold] answers: ")
    done = call("build", "d.jsonl", "--role", "Ada", "--out", "ada", "--llm", "llm.yaml")
    assert done.code == 0 and inert(done.out + done.err)
    done = call("card", "ada")
    assert done.code == 0 and inert(done.out)
    assert "Defects\n" in done.out and "  description: It is not in the second person" in done.out
    shown = call("card", "ada", "--json").json
    assert shown["defects"].keys() == {"description"}
