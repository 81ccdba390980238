"""A process that has imported what commands need, and forks for each: imports take longer than a twin trains."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

_FORKING = """
import importlib, json, os, sys, traceback
for name in sys.argv[1:]:
    importlib.import_module(name)
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(job["cwd"])
            for number, name in ((1, "out.txt"), (2, "err.txt")):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.environ.update(job["env"])
            sys.argv = job["argv"]
            if job["code"] is None:
                from rolellm.cli.app import main
                main()
            else:
                exec(compile(job["code"], "given", "exec"), {"__name__": "__main__"})
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forking:
    """Runs ``rolellm`` commands, or code, in processes forked from one that has done the imports.

    What the libraries read of the environment at import, such as the Hub's address, is that of `env` for all.
    """

    def __init__(self, env: dict[str, str], modules: Sequence[str]) -> None:
        command = [sys.executable, "-c", _FORKING, *modules]
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> "Forking":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, words: Sequence[Any], cwd: Path, *, code: str | None = None, env: Any = None) -> str:
        """What it printed; it has to end well."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"argv": ["rolellm", *map(str, words)], "cwd": str(cwd), "code": code, "env": dict(env or {})}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        ended = self._process.stdout.readline().strip()
        assert ended == "0", f"exit {ended}: {(cwd / 'err.txt').read_text(encoding='utf-8')}"
        return (cwd / "out.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hub_env(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment with a Hub of this machine, `examples/local_hub.py`, for all tests of a module."""
    import os

    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.syspath_prepend(root / "examples")
        import local_hub

        server = stack.enter_context(local_hub.LocalHub(tmp_path_factory.mktemp("hub")))
        home = tmp_path_factory.mktemp("home")
        ours = {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": local_hub.USER, "HF_HUB_OFFLINE": "0"}
        homes = {"HF_HOME": str(home), "HF_DATASETS_CACHE": str(home / "datasets")}
        yield {**os.environ, **ours, **homes, "HF_HUB_DISABLE_XET": "1"}


@pytest.fixture(scope="module")
def rolellm(hub_env: dict[str, str]) -> Iterator[Callable[..., str]]:
    """Runs a ``rolellm`` command to its end."""
    modules = ("rolellm.cli.app", "rolellm.rocit.sft", "rolellm.rocit.trainer", "rolellm.rolebench", "peft", "datasets")
    with Forking(hub_env, modules) as forking:
        yield forking


@pytest.fixture(scope="module")
def without_rolellm(hub_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs code that has stock libraries alone, and a Hugging Face home that nothing else touches."""
    env = {**hub_env, "HF_HOME": str(tmp_path_factory.mktemp("elsewhere"))}
    with Forking(env, ("torch", "peft", "transformers")) as forking:
        yield forking
