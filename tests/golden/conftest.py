"""Commands in a folder of their own, each in a process forked from one that has imported what they need.

Nothing of the library's own modules is named here but its entry point, so that they can be moved about.
"""

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rolellm

from ..forking import Forking
from .golden import Normal, card

Ended = subprocess.CompletedProcess[str]
#: Seconds after which a command is ended; all of them are short.
_LONGEST = 120
#: Other people's modules that take long to import.
_SLOW = """
    torch._inductor.compile_fx bitsandbytes scipy.stats scipy.io pandas pyarrow.dataset datasets peft
    trl.trainer.sft_trainer transformers.models.llama.modeling_llama transformers.models.glm.modeling_glm openai aiohttp
    bm25s rjieba matplotlib.figure jsonschema
"""
_PREDICTIONS = """
import json
from rolellm import load_rolebench
rows = list(load_rolebench("sample", "test"))
answers = {
    "tuned": lambda row: row["references"][0],
    "base": lambda row: f"I am a language model. {row['question']}",
    "half": lambda row: row["references"][-1] if row["language"] == "en" else None,
}
for name, answer in answers.items():
    lines = [{"id": row["id"], "prediction": answer(row)} for row in rows if answer(row) is not None]
    if name == "half":
        lines += [{"role": "Nobody", "question": "Who?", "prediction": "I."}]
    with open(f"{name}.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\\n" for line in lines)
"""
_CHATGLM = """
import importlib.util, pathlib, sys, torch
spec = importlib.util.spec_from_file_location("published", sys.argv[1])
found = importlib.util.module_from_spec(spec)
spec.loader.exec_module(found)
here = pathlib.Path("chatglm")
here.mkdir()
tensors = found.random_tensors(found.CONFIG, torch.float16)
found.publish(here / "published", "chatglm3", found.CONFIG, tensors, found.tokenizer_bytes(here))
"""


@dataclass(frozen=True)
class Case:
    """A command, and what of it is recorded.

    Attributes:
        words: As after ``rolellm`` in a shell; `Shell.names` stand in braces.
        after: Cases that have to be done before.
        left: Files and folders that it leaves, from the folder that it runs in.
        exact: Patterns of paths whose bytes are always the same.
        hub: Repositories that it publishes, as ``model:OWNER/NAME``.
        prepare: Does something in the folder before it.
    """

    words: str
    after: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    hub: tuple[str, ...] = ()
    prepare: Callable[[Path], None] | None = None


class Shell:
    """Runs commands in one folder and tells what they did.

    Attributes:
        names: What words in braces stand for.
        normal: Makes what is found comparable.
    """

    def __init__(self, forking: Forking, folder: Path, hub: Any, names: dict[str, str]) -> None:
        self._forking, self._folder, self._hub = forking, folder, hub
        self._done: dict[Case, dict[str, Any]] = {}
        self.names = names
        self.normal = Normal({value: f"<{name}>" for name, value in names.items()})

    def code(self, code: str, *words: object) -> str:
        """Run code; what it printed."""
        return self._forking(words, self._folder, code=code)

    def run(self, case: Case) -> Ended:
        """Run a case's command to its end."""
        words = [word.format(**self.names) for word in shlex.split(case.words)]
        if case.prepare is not None:
            case.prepare(self._folder)
        started = self._forking.start(words, self._folder)
        end = time.monotonic() + _LONGEST
        while started.poll() is None:
            if time.monotonic() > end:
                started.send_signal(signal.SIGKILL)
            time.sleep(0.005)
        return started.wait()

    def record(self, name: str, cases: dict[str, Case]) -> dict[str, Any]:
        """What a case did, after those before it; each is run once."""
        case = cases[name]
        if case not in self._done:
            for before in case.after:
                self.record(before, cases)
            ended = self.run(case)
            found: dict[str, Any] = {"exit": outcome(ended), "json": self._json(ended), "files": {}}
            for left in case.left:
                found["files"] |= self.normal.files(self._folder, left, case.exact)
            if case.hub:
                found["hub"] = {repo: self._published(repo) for repo in case.hub}
            self._done[case] = found
            # Shown where the test fails.
            print(ended.stderr, file=sys.stderr)
        return self._done[case]

    def _json(self, ended: Ended) -> Any:
        return self.normal.json(json.loads(ended.stdout)) if ended.stdout.startswith("{") else None

    def _published(self, repo: str) -> dict[str, Any]:
        kind, _, name = repo.partition(":")
        state = self._hub.store.read(kind, name)
        head = state["branches"]["main"]
        files = state["commits"][head]["files"]
        text = self._hub.store.content(files["README.md"]["sha256"]).read_text(encoding="utf-8")
        commits = len(state["commits"])
        about = {"files": sorted(map(self.normal.text, files)), "commits": commits, "private": state["private"]}
        return {**about, "card": card(text)}


def outcome(ended: Ended) -> int:
    """How a command ended, which is never with a traceback."""
    assert "Traceback (most recent call last)" not in ended.stderr + ended.stdout, ended.stderr
    return ended.returncode


def _own_modules() -> list[str]:
    """All of the library's modules, wherever they are today."""
    top = Path(rolellm.__file__).parent
    parts = [path.relative_to(top.parent).with_suffix("").parts for path in sorted(top.rglob("*.py"))]
    names = [".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts]
    # These harnesses are installed in environments of their own.
    return [name for name in names if not name.endswith(("__main__", ".inspect_tasks", ".lighteval_tasks"))]


@pytest.fixture(scope="module")
def shell(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Runs commands in a folder with what they read, beside a Hub and a language model on this machine."""
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "examples")
        from llm_scripted import Scripted
        from local_hub import USER, LocalHub
        from local_llm import LocalLLM

        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
            patch.delenv(name, raising=False)
        patch.delenv("ROLEBENCH_DIR", raising=False)
        with LocalHub(folder.parent / f"{folder.name}-hub") as hub, LocalLLM(Scripted()) as llm, LocalLLM() as judge:
            online = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": USER, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
            modules = (*_SLOW.split(), *_own_modules())
            with Forking({**os.environ, **online}, modules) as forking:
                sample = next(Path(rolellm.__file__).parent.rglob("sample/rolebench-eng")).parent
                names = {"place": str(folder), "sample": str(sample), "hub": hub.endpoint}
                shell = Shell(forking, folder, hub, names | {"llm": llm.url, "judge": judge.url})
                _furnish(folder, sample, shell)
                published = next((root / "tests").rglob("chatglm/published.py"))
                shell.code(_CHATGLM, published)
                yield shell


def _furnish(folder: Path, sample: Path, shell: Shell) -> None:
    """Put what commands read into their folder."""
    for name, role in {"queen": "Queen of Hearts", "lu": "鲁智深"}.items():
        shutil.copy(sample / "scripts" / f"{role}.txt", folder / f"{name}.txt")
    shutil.copy(sample / "instructions-eng" / "instructions-general.jsonl", folder / "general.jsonl")
    (folder / "bad.jsonl").write_text('{"id": "x"}\nnot JSON\n', encoding="utf-8")
    scripted = "endpoints: [{backend: scripted, rules: %s%s}]\n"
    price = ", price: {prompt: 1000, completion: 1000}, concurrency: 1"
    (folder / "rules.yaml").write_text(scripted % ("quotes", ""), encoding="utf-8")
    (folder / "words.yaml").write_text(scripted % ("words", ""), encoding="utf-8")
    (folder / "dear-words.yaml").write_text(scripted % ("words", price), encoding="utf-8")
    (folder / "mistyped.yaml").write_text("endpoints: [{backend: scripted, rule: words}]\n", encoding="utf-8")
    jury = "endpoints:\n  - {backend: scripted, rules: words}\n  - {base_url: '%s', model: invented}\n"
    (folder / "jury.yaml").write_text(jury % shell.names["judge"], encoding="utf-8")
    book = {"entries": [{"keys": ["bell"], "content": "The storm bell was cast from three drowned anchors."}]}
    data = {"name": "Tobin Ash", "description": "{{char}} keeps the tower.", "first_mes": "Two hundred steps."}
    data |= {"mes_example": "<START>\n{{user}}: Hello?\n{{char}}: Mind the stairs.", "creator": "me"}
    value = {"spec": "chara_card_v2", "spec_version": "2.0", "data": {**data, "character_book": book}}
    (folder / "tobin.json").write_text(json.dumps(value), encoding="utf-8")
    shell.code(_PREDICTIONS)


def fill_sheet(folder: Path) -> None:
    """What a person does to the sheet of ``rolellm label``: rank the first three as they come."""
    sheet = folder / "labels.csv"
    with sheet.open(encoding="utf-8-sig", newline="") as stream:
        head, *lines = csv.reader(stream)
    places = [name.startswith("place of") for name in head]
    for line in lines[:3]:
        line[places.index(True) :] = [str(place) for place in range(1, sum(places) + 1)]
    with sheet.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([head, *lines])
