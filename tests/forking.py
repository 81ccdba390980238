"""Commands in processes forked from one that has done their imports, which take longer than most of them run."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: What training imports.
TRAINING = ("rolellm.training.fit", "rolellm.training.train", "rolellm.data.rolebench", "peft", "datasets")
#: What commands import.
COMMANDS = ("rolellm.cli.app", *TRAINING, "rolellm.scoring.generate", "rolellm.scoring.score", "scipy.io")
#: What is behind those imports and asks nothing of the Hub: most of their time.
BEHIND_HUGGING_FACE = (
    "torch._inductor.compile_fx",
    "bitsandbytes",
    "scipy.stats",
    "scipy.io",
    "pandas",
    "pyarrow.dataset",
)

# A line in is a job or the number of a process to look after; a line out is the number of the new one, or how it ended.
_FORKING = """
import importlib, json, os, sys, traceback

def carry_out(job):
    os.chdir(job["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, job["out"]), (2, job["err"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    for name, value in job["env"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    sys.argv = job["argv"]
    if job["code"] is None:
        from rolellm.cli.app import main
        main()
    else:
        exec(compile(job["code"], "given", "exec"), {"__name__": "__main__"})

for name in sys.argv[1:]:
    importlib.import_module(name)
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if "pid" in job:
        pid, status = os.waitpid(job["pid"], 0 if job["wait"] else os.WNOHANG)
        print(os.waitstatus_to_exitcode(status) if pid else "running", flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    code = 1
    try:
        carry_out(job)
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(code)
"""


class Forking:
    """Runs ``rolellm`` commands, or code, each in a process forked from one that has done the imports.

    What the libraries read of the environment at import, such as the Hub's address, is that of `env` for all. Nothing
    that is registered for the end of a process is done. They see no release but one they are given.
    """

    def __init__(self, env: Mapping[str, str], modules: Sequence[str]) -> None:
        command = [sys.executable, "-c", _FORKING, *modules]
        env = {name: value for name, value in env.items() if name != "ROLEBENCH_DIR"}
        self._folder = tempfile.TemporaryDirectory(prefix="rolellm-forking-")
        self._started: list[Forked] = []
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> "Forking":
        return self

    def __exit__(self, *_: object) -> None:
        for left in self._started:
            if left.returncode is None:
                left.send_signal(signal.SIGKILL)
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def ask(self, **job: Any) -> str:
        """Give it a job, or ask after a process."""
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def start(
        self, words: Sequence[Any], cwd: Path, *, code: str | None = None, env: Mapping[str, str | None] | None = None
    ) -> "Forked":
        """Start a command, or code with these arguments; `env` is set in its environment, or with None, taken out."""
        out, err = (Path(self._folder.name) / f"{len(self._started)}.{kind}" for kind in ("out", "err"))
        argv = ["rolellm", *map(str, words)]
        given = {"argv": argv, "cwd": str(cwd), "out": str(out), "err": str(err)}
        pid = int(self.ask(**given, code=code, env=dict(env or {})))
        self._started.append(Forked(self, argv, pid, out, err))
        return self._started[-1]

    def run(self, words: Sequence[Any], cwd: Path, **more: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command, or code, to its end."""
        return self.start(words, cwd, **more).wait()

    def __call__(self, words: Sequence[Any], cwd: Path, **more: Any) -> str:
        """What it printed; it has to end well."""
        done = self.run(words, cwd, **more)
        assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
        return done.stdout


def script(path: Path) -> str:
    """Code that runs a script as Python does, with its folder first on the path."""
    return (
        f"import runpy, sys; sys.path.insert(0, {str(path.parent)!r}); runpy.run_path({str(path)!r}, None, '__main__')"
    )


@dataclass
class Forked:
    """A process of :class:`Forking`, as far as tests need one; somebody has to wait for it."""

    forking: Forking
    argv: list[str]
    pid: int
    out: Path
    err: Path
    returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, or None while it runs."""
        return self._look(wait=False)

    def wait(self) -> "subprocess.CompletedProcess[str]":
        """How it ended, and what it printed."""
        code = self._look(wait=True)
        assert code is not None
        out, err = (path.read_text(encoding="utf-8") for path in (self.out, self.err))
        return subprocess.CompletedProcess(self.argv, code, out, err)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it one, unless somebody saw it end."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def _look(self, *, wait: bool) -> int | None:
        if self.returncode is None:
            ended = self.forking.ask(pid=self.pid, wait=wait)
            self.returncode = None if ended == "running" else int(ended)
        return self.returncode


@pytest.fixture(scope="session")
def warm() -> Iterator[Forking]:
    """Runs commands, offline, in the Hugging Face home of all tests."""
    with Forking(os.environ, COMMANDS) as forking:
        yield forking


@pytest.fixture(scope="session")
def lukewarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    """Runs commands, or code, that read what the environment says of the Hub and its home for themselves."""
    with Forking(os.environ, BEHIND_HUGGING_FACE) as forking:
        code = "import sys; print({'huggingface_hub', 'transformers', 'datasets'} & sys.modules.keys())"
        assert forking([], tmp_path_factory.mktemp("imports"), code=code) == "set()\n"
        yield forking
