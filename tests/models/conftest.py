"""What tests of tree attention need to run FlexAttention without a GPU."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def flex_gradients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlexAttention on a CPU, uncompiled and with gradients: torch has them, but refuses them there."""
    import torch

    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    with torch.compiler.set_stance("force_eager"):
        yield
