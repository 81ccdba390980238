"""What the benchmarks of the client share: a server of its own, requests, and what the server saw."""

import ctypes
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolellm.llm.endpoint import Endpoint
from rolellm.llm.model import Price, Request, Sampling, system, user
from rolellm.llm.settings import ModelSettings

ROOT = Path(__file__).resolve().parent.parent
PRICE = (1.0, 4.0)
SYSTEM = "You are Ada Fenn, a lighthouse keeper who counts everything and says so. " * 12


class Server:
    """`examples/local_llm.py` in a process of its own, so that its work is none of the client's."""

    def __init__(self, url: str) -> None:
        self.url = url

    def endpoint(self, concurrency: int = 64, timeout: float = 30.0) -> Endpoint:
        """A model at this server."""
        # The server takes half for what it had in its cache.
        price = Price(*PRICE, cached=PRICE[0] / 2)
        return Endpoint(
            ModelSettings(model="local", base_url=self.url, concurrency=concurrency, timeout=timeout, price=price)
        )

    def counts(self) -> dict[str, Any]:
        """What the server saw."""
        return dict(self._get("counts"))

    def seen(self) -> dict[str, list[int]]:
        """How often each request came, and how often it got a good answer, by the hash of its body."""
        return dict(self._get("seen"))

    def reset(self) -> None:
        """Have the server forget."""
        urllib.request.urlopen(urllib.request.Request(f"{self._base}/local/reset", b"")).close()

    @property
    def _base(self) -> str:
        return self.url.removesuffix("/v1")

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self._base}/local/{what}") as response:
            return json.loads(response.read())


def _end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, however that ends (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def server(
    latency: float, faults: float = 0.0, seed: int = 0, kinds: Sequence[str] = (), more: Sequence[str] = ()
) -> Iterator[Server]:
    """Start a server, with more of its options; it ends with the block."""
    command = [sys.executable, str(ROOT / "examples" / "local_llm.py"), "--port", "0", "--latency", str(latency)]
    command += ["--faults", str(faults), "--seed", str(seed), "--price", *map(str, PRICE)]
    command += ["--kinds", ",".join(kinds)] if kinds else []
    command += more
    # Ray's own code ends a process that has lost its cluster, and nothing of Python runs then.
    before = _end_with_parent if sys.platform == "linux" else None
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=before)
    assert process.stdout is not None
    try:
        yield Server(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def requests(count: int, max_tokens: int = 200) -> Iterator[Request]:
    """Requests that share a system message of about 200 tokens."""
    sampling = Sampling(max_tokens=max_tokens)
    for number in range(count):
        yield Request((system(SYSTEM), user(f"What do you count on night {number}, and why?")), sampling)
