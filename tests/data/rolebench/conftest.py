"""A release on the local Hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.data.rolebench.schema import REVISION

REPO = "ZenMoore/RoleBench"


@pytest.fixture
def release_hub(hub: Any) -> Callable[[Path], Any]:
    """Puts a release folder on `hub` at the revision that we ask for; `hub.requested` lists what is fetched."""

    def serve(folder: Path) -> Any:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        hub.store.create("dataset", REPO, private=False, files=files)
        hub.store.branch("dataset", REPO, REVISION, "main")
        hub.requested, resolve = [], hub.resolve
        hub.resolve = lambda **request: (hub.requested.append(request["path"]), resolve(**request))[1]
        return hub

    return serve
