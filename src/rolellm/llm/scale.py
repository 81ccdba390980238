"""Asking from many machines: the requests of a run are divided among Ray workers, each with a journal of its own.

Every stage that asks models goes through a `rolellm.llm.client.Client`, so this is the one place that knows of Ray.
What the journal does not answer goes to the workers; each is a client in ``shards/NNNN`` of the run's folder, with the
same models and the same `accept`. Ray starts a killed worker again, and what it journaled is not asked again. When all
have ended, their journals are merged into the run's, and the run goes on as ever: it finds the answers there, and asks
by itself what the workers left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rolellm.core.errors import ModelError, RoleLLMError, RoleLLMWarning, SettingsError, require
from rolellm.llm.dispatcher import Dispatcher
from rolellm.llm.journal import JOURNAL, SHARDS
from rolellm.llm.model import Outcome, Request, T

#: How often a worker that is killed starts again.
_LIVES = 100
# Seconds between two looks at the workers.
_LOOK = 0.2
_REPLY = b'"kind":"reply"'


def _join_cluster(address: str, workers: int | None, *, local: bool) -> tuple[int, Callable[[Any], Any]]:
    """Join a Ray cluster, or start one here, unless this process has one already.

    Args:
        address: The cluster's; ``local`` starts one.
        workers: How many workers; by default as many as there are GPUs for local models, or else CPUs.
        local: Whether models are loaded into the workers.

    Returns:
        The number of workers, and what makes a function one of Ray's that starts again where a worker is killed.

    Raises:
        MissingExtraError: Without Ray.
        SettingsError: When there is no cluster.
    """
    require("ray", extra="scale")
    # Ray reports to its makers otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        # Whoever reaches a cluster's ports can run programs on it. So they are on loopback, as Ray has them on Windows
        # (the name is for all systems), and ask for a token.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if not ray.is_initialized():
        local_options: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
        # It tells of killed workers on the standard output, whatever `log_to_driver` says.
        ray._private.worker._worker_logs_enabled = False
        try:
            _start_in_lasting_thread(
                lambda: ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local_options)
            )
        except Exception as error:  # Of no class of its own, where a node starts too slowly.
            raise SettingsError(
                f"no Ray cluster at {address!r} ({str(error).strip():.200}); start one there (ray start --head), or "
                "set ray to local"
            ) from error
    resources = ray.cluster_resources()
    unit = "GPU" if local and resources.get("GPU") else "CPU"
    remote = ray.remote(num_cpus=1, num_gpus=int(unit == "GPU"), max_retries=_LIVES)
    return workers or int(resources[unit]), remote


def _start_in_lasting_thread(start: Callable[[], Any]) -> None:
    """Start Ray in a thread that lasts: Linux kills Ray's processes when the thread that started them ends."""
    started: Future[None] = Future()

    def run_forever() -> None:
        try:
            start()
            started.set_result(None)
        except Exception as error:
            started.set_exception(error)
        else:
            threading.Event().wait()

    threading.Thread(target=run_forever, daemon=True).start()
    started.result()


def map_parts(
    work: Callable[[Any, Any], Any], model: Any, parts: Iterable[Any], address: str | None, workers: int | None
) -> Iterator[Any]:
    """Do independent work with a model that is loaded where it is used: here, or on the workers of a Ray cluster.

    Args:
        work: Takes the model and a part.
        model: A `rolellm.models.local_model.LocalModel`; each worker loads it once.
        parts: What is to be done.
        address: The cluster's, or ``local``; ``None`` for here.
        workers: How many workers.

    Yields:
        What `work` makes of each part: here in their order, from workers as it comes. What a killed worker had in hand
        is done again.

    Raises:
        MissingExtraError: Without Ray.
        SettingsError: When there is no cluster.
        ModelError: When workers cannot go on; other errors are those of `work`.
    """
    if address is None:
        yield from (work(model, part) for part in parts)
        return
    count, remote = _join_cluster(address, workers, local=True)
    import ray

    task, sent, waiting = remote(work), ray.put(model), []
    for part in parts:
        waiting.append(task.remote(sent, part))
        if len(waiting) == count:
            (done, *_), waiting = ray.wait(waiting)
            yield _get_result(done)
    yield from map(_get_result, waiting)


def _get_result(done: Any) -> Any:
    """Get the result of a task, or raise its error as it would be here."""
    import ray

    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, RoleLLMError) else error from None
    except ray.exceptions.RayError as error:
        raise ModelError(
            f"a Ray worker ended ({str(error).strip():.200}); rerun the same command to continue"
        ) from None


@dataclass(eq=False)
class RayDispatcher(Dispatcher[T]):
    """Asks on the workers of a Ray cluster; see `rolellm.llm.dispatcher.Dispatcher`.

    Attributes:
        ask_shard: Asks a worker's part: takes its folder, the requests with their numbers, and models, `accept`, `also`
            and options; returns why it stopped early.
    """

    ask_shard: Callable[..., str] = field(kw_only=True)

    async def go(self, requests: Iterable[tuple[int, Request]], done: Callable[[int, Outcome[T]], None]) -> None:
        """Ask all of them; each outcome goes to `done` with the place that came with its request.

        Args:
            requests: All are read before any is sent.
            done: Called once for each request that is settled: all of them, unless the run is stopped.
        """
        self._done = done
        tasks = self._begin_all(requests)
        journaled, settled = self.from_journal, self.settled
        # A worker knows nothing of earlier replies that were not taken; a single request is not worth sending around.
        new = [(task.position, task.request) for task in tasks if not task.paid]
        try:
            if len(new) > 1:
                await self._split_work(new)
        except Exception as error:
            self.stop(error)
        self.settled, self.in_flight = settled, 0
        if self.stopped is None:
            self._active.clear()
            remaining: list[tuple[int, Request]] = []
            for task in tasks:
                remaining += [(task.position, task.request), *task.followers]
            await super().go(remaining, done)
            # Whatever is found there now was paid for in this run.
            self.from_journal = journaled

    async def _split_work(self, items: Sequence[tuple[int, Request]]) -> None:
        """Have workers ask, and take in their journals."""
        address, workers, budget = self.options.ray or "", self.options.workers, self.options.budget
        local = any(model.identity.get("backend") == "local" for model in self.models)
        count, remote = await asyncio.to_thread(_join_cluster, address, workers, local=local)
        import ray

        count = min(count, len(items))
        if budget is not None:
            budget = max(budget - self.journal.cost, 0.0) / count
        options = replace(self.options, ray=None, workers=None, budget=budget, show_progress=False)
        shards = self.journal.path.parent.absolute() / SHARDS
        shards.mkdir()
        setup = ray.put((self.models, self.accept, tuple(self.also), options))
        ask = remote(self.ask_shard)
        folders = [shards / f"{part:04}" for part in range(count)]
        parts = [ask.remote(str(folder), items[part::count], setup) for part, folder in enumerate(folders)]
        try:
            await self._watch(parts, [folder / JOURNAL for folder in folders])
        except asyncio.CancelledError:
            # What they journaled is merged by the next run.
            for part in parts:
                ray.cancel(part, force=True)
            raise
        self.calls += self.journal.merge()
        for part in parts:
            problem = ""
            try:
                problem = ray.get(part)
            except ray.exceptions.TaskCancelledError:
                continue
            except ray.exceptions.RayTaskError as error:
                self.stop(error.cause)
            except ray.exceptions.RayError as error:
                problem = f"a Ray worker ended ({str(error).strip():.200})"
            if problem and self.stopped is None:
                warnings.warn(f"{problem}; the rest is requested from this machine", RoleLLMWarning, stacklevel=2)

    async def _watch(self, parts: list[Any], journals: Sequence[Path]) -> None:
        """Wait for all workers, and count their replies."""
        import ray

        is_cancelled = False
        read_bytes = dict.fromkeys(journals, 0)
        waiting = parts
        while waiting:
            _, waiting = await asyncio.to_thread(ray.wait, parts, num_returns=len(parts), timeout=_LOOK)
            if self.stopped is not None and not is_cancelled:
                is_cancelled = True
                for part in waiting:
                    # Ends as at a first Ctrl-C: what is in flight is waited for.
                    ray.cancel(part)
            for path in filter(Path.is_file, journals):
                with path.open("rb") as stream:
                    stream.seek(read_bytes[path])
                    new = stream.read()
                read_bytes[path] += len(new)
                self.settled += new.count(_REPLY)
