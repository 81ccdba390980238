"""Bad usage of every command: a sentence on standard error, an exit code, and no file made or changed."""

import json
import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolellm import load_rolebench
from rolellm.characters.folder import write_character
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Profile, Turn

from ..commands import Command, inert
from ..judge_runs import CONTESTANTS, make_comparison, make_rows, write_run

GENERATE = "generate --model tiny --config sample --out p.jsonl"
JUDGE = "judge good.jsonl --config sample --llm llm.yaml --out run"
PARSE = "role parse script.txt --role Fox --out turns.jsonl"
CONVERSE = "check converse fox --script script.txt --llm llm.yaml --out out --set"
SERVE = "serve 'queen of hearts' --port 0 --llm http://127.0.0.1:9/v1 --model m"
BUILD = "role build dialogue.jsonl --llm llm.yaml --role Fox"
#: What is given, the exit code, and words of the reason.
REFUSALS = {
    "set, below a bound": (f"{CONVERSE} temperature=-1", 2, "temperature: must be greater than or equal to 0"),
    "set, below a bound of the command": (
        "respond fox --instructions asked.jsonl --llm llm.yaml --set limit=0",
        2,
        "limit: must be greater than or equal to 1",
    ),
    "set, unknown": (f"{CONVERSE} max_token=1", 2, "there is no such option; did you mean max_tokens?"),
    "set, no value": (f"{CONVERSE} context", 2, "--set context: expected KEY=VALUE"),
    "model, an address": ("chat fox --model http://localhost:8000/v1", 2, "give it as --llm, and the model's name"),
    "llm, twice": (f"{PARSE} --llm a --llm llm.yaml", 2, "--llm is given more than once; give one file"),
    "llm, none": ("instruct fox", 2, "no model is named"),
    "llm, an address alone": ("instruct fox --llm http://localhost:8000/v1", 2, "A server needs --model"),
    "llm, a model alone": ("instruct fox --model small", 2, "--model needs --llm URL"),
    "llm, a file and a model": ("instruct fox --llm llm.yaml --model m", 2, "--model is for a server; put it in"),
    "llm, rules for judging": ("instruct fox --llm words.yaml", 1, "error: the rules `words`"),
    "llm, rules for making": (JUDGE.replace("run", "quoted"), 1, "error: the rules `quotes`"),
    "parse, into a file": (PARSE.replace("turns", "llm.yaml/x"), 1, "check that the path is right"),
    "parse, into a pipe": (PARSE.replace("turns.jsonl", "pipe"), 2, "pipe is not a regular file; name a file to write"),
    "parse, over the script": (PARSE.replace("turns.jsonl", "script.txt"), 2, "is the script itself"),
    "parse, into a folder": (PARSE.replace("turns.jsonl", "full"), 2, "is a folder"),
    "parse, columns": (f"{PARSE} --set columns=speaker", 1, "found 'speaker'; expected NAME=COLUMN"),
    "build, no role": ("role build dialogue.jsonl --llm llm.yaml --out o", 2, "--role is missing; use a name from"),
    "build, no folder": (BUILD, 2, "add --out"),
    "build, spelling": (f"{BUILD[:-3]}Fo --out o", 1, "who does: Fox (1)"),
    "build, into a file": (f"{BUILD} --out llm.yaml", 2, "is a file"),
    "build, too many": (f"{BUILD} --out o --catchphrases 99", 2, "catchphrases"),
    "build, no description": (f"{BUILD} --out o --description x", 1, "cannot be read"),
    "build, role of a folder": ("role build fox --role Fox --llm llm.yaml", 2, "leave them out"),
    "card, no name": ("role card nameless.json --out x", 1, "rolellm role card CARD --out FOLDER --set role=NAME"),
    "card, a wrong type": ("role card escape.json --out x", 1, "'\\x1b[2J\\u202e'"),
    "card, a folder in use": ("role card ada.json --out full", 2, "holds other files"),
    "card, another ending": ("role card fox --out a.gif", 2, "a .json, .png or .charx file"),
    "card, into a file": ("role card fox --out llm.yaml/card.json", 1, "check that the path is right"),
    "instruct, an empty character": ("instruct mute --llm llm.yaml", 1, "nothing to ask Ada about"),
    "respond, no character": ("respond none --instructions asked.jsonl --llm llm.yaml", 1, "no profile.json here"),
    "respond, no room": (
        "respond fox --instructions asked.jsonl --llm llm.yaml --set max_prompt_tokens=9",
        2,
        "at most 9 are allowed",
    ),
    "generate, no model": (GENERATE.replace("tiny", "nowhere/at/all"), 1, "no such directory"),
    "generate, no model to price": (f"{GENERATE} --dry-run".replace("tiny", "nowhere/x/y"), 1, "no such directory"),
    "generate, role": (f"{GENERATE} --role 'Queen of Heart'", 2, "Queen of Hearts"),
    "score, no file": ("score absent.jsonl --config sample", 1, "absent.jsonl: not a file"),
    "score, config": ("score good.jsonl --config sampel", 2, "sample"),
    "score, split": ("score good.jsonl --config sample --split dev", 2, "dev"),
    "score, no config": ("score good.jsonl", 2, "--config"),
    "judge, no file": (JUDGE.replace("good", "absent"), 1, "absent.jsonl: not a file"),
    "judge, same name": (f"{JUDGE} good.jsonl", 2, "two systems would be called good"),
    "judge, no baseline": (f"{JUDGE} b=good.jsonl --baseline none", 2, "compares with a baseline"),
    "judge, into a file": (f"{JUDGE} --out good.jsonl", 2, "is a file"),
    "label, a path for a name": ("label 'a run' --annotator ../anna", 2, "not a file name"),
    "label, no run": ("label full --annotator anna", 1, "rolellm judge"),
    "label, half a run": ("label half --annotator anna", 1, "not finished"),
    "agreement, no folder": ("label nowhere --agreement", 1, "nowhere"),
    "agreement, half a run": ("label half --agreement", 1, "not finished"),
    "report, not a run": ("report full", 1, "not the folder of a judging run"),
    "report, no config": ("report odd.jsonl", 2, "--config is missing"),
    "report, answers no row": ("report odd.jsonl --config sample", 1, "odd: "),
    "chat, no model": ("chat fox", 2, "no model is named"),
    "chat, no role": ("chat nobody --llm llm.yaml", 2, "for all roles, set $ROLEBENCH_DIR"),
    "chat, two without a page": ("chat fox --llm llm.yaml --set against=words.yaml", 2, "needs --web"),
    "chat, the same twice": ("chat fox --llm llm.yaml --set against=llm.yaml --web", 2, "the same model again"),
    "chat, no role on a page": ("chat nobody --llm llm.yaml --web", 2, "no role 'nobody'"),
    "serve, role": (SERVE.replace("queen", "king"), 2, "no role 'king of hearts'"),
    "serve, address": (
        "serve fox --port 0 --model m --llm localhost:8000",
        2,
        "a server's address starts with http://",
    ),
    "serve, model": ("serve fox --port 0 --model missing/folder/x", 1, "no model at"),
    "serve, origin": (f"{SERVE} --set allow_origin=localhost:3000", 2, "is not an origin"),
    "serve, a role twice": (f"{SERVE} 'Queen of Hearts'", 2, "two roles"),
    "serve, port": (f"{SERVE} --port {{taken}}", 2, "choose another port"),
    "reward, unknown": ("check reward rolellm.rewards.nothing", 2, "there is no rolellm.rewards.nothing"),
    "reward, weights": ("check reward length --set weights=1 --set weights=2", 2, "2 weights for 1 rewards"),
    "safety, no base": ("check safety words.yaml", 2, "name the base with --against"),
    "eval, no model": ("eval missing/folder/x --config sample", 1, "missing/folder/x"),
    "eval, no rows": ("eval tiny --data none.jsonl", 1, "no file at none.jsonl"),
    "eval, form": ("eval tiny --data odd.jsonl", 1, "odd.jsonl has the columns id, prediction, which are of no known"),
    "eval, two sources": ("eval tiny --data odd.jsonl --config sample", 2, "not both"),
    "eval, a bad row": ("eval tiny --data bad.jsonl", 1, "bad.jsonl, row 2: found an empty reply in turn 2"),
    "train, no such recipe": ("train smoke-gpu", 2, "no recipe at smoke-gpu"),
    "push, no run": ("push nowhere me/model --license mit --dry-run", 1, "nowhere"),
    "convert, no checkpoint": ("data convert-chatglm nowhere never", 1, "nowhere"),
    "demo, a file in its place": ("demo --out good.jsonl", 2, "good.jsonl"),
    "data, no release": ("data build --data-dir nowhere --out never", 1, "nowhere"),
    "data, config": ("data build --config samples --out never", 2, "sample"),
    "data, no owner": ("data push rolebench --config sample", 2, "is not a repository"),
    "release, no character": ("role release nowhere --out never", 1, "no profile.json here"),
    "make, below a file": ("make fox --out llm.yaml/ada", 2, "llm.yaml/ada cannot be written ("),
    "make, on a read-only disk": ("make fox --out /proc/ada", 2, "/proc/ada cannot be written ("),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder with inputs of all commands, and some that are wrong."""
    folder = tmp_path_factory.mktemp("refusals")
    turns = (Turn("Crow", "Where is the map?", "speech"), Turn("Fox", "I ate the map, you rat.", "speech"))
    write_character(Profile("Fox", "en", turns, description="You are a fox."), folder / "fox")
    write_character(Profile("Ada", "en"), folder / "mute")
    comparison = make_comparison(make_rows(4), CONTESTANTS)
    for name in ("a run", "half"):
        write_run(folder / name, comparison)
    (folder / "half" / "result.json").unlink()
    line = {"role": "Fox", "speaker": "Fox", "content": "I ate it.", "kind": "speech", "scene": 0}
    answers = [{"id": row["id"], "prediction": row["references"][0]} for row in load_rolebench("sample", "test")]
    pairs = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": ""}]
    lines = {"dialogue": [line], "asked": [{"instruction": "Who?"}], "good": answers, "bad": pairs}
    for name, values in (lines | {"odd": [{"id": "x", "prediction": "\x1b[31my"}]}).items():
        write_jsonl(folder / f"{name}.jsonl", values)
    card = {"name": "Ada", "description": "d"}
    wrong = {"spec": "\x1b[2J\u202e", "data": card}
    for name, value in {"ada": card, "nameless": card | {"name": ""}, "escape": wrong}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    for name, rules in {"llm": "quotes", "words": "words"}.items():
        (folder / f"{name}.yaml").write_text(f"endpoints: [{{backend: scripted, rules: {rules}}}]\n")
    (folder / "script.txt").write_text("FOX: Who has the map?\n\nCROW: Nobody has.\n\n" * 9)
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").touch()
    (folder / "tiny").symlink_to(tiny_model)
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def read_files(folder: Path) -> dict[Path, bytes]:
    """Read all files but journals, which keep what was answered before."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.stem != "journal"}


@pytest.mark.parametrize(("line", "code", "words"), [pytest.param(*case, id=name) for name, case in REFUSALS.items()])
def test_what_is_refused(
    line: str, code: int, words: str, place: Path, taken: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = read_files(place)
    done = command(*shlex.split(line.format(taken=taken)))
    assert (done.code, words in done.err, done.out) == (code, True, ""), done.err
    assert sum(row.startswith(("error: ", "Usage: ")) for row in done.err.splitlines()) == 1
    assert inert(done.err)
    after = read_files(place)
    assert after == before, after.keys() ^ before.keys()
