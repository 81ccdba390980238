"""Merging our card into a README: nothing that a person wrote is lost."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import RepoCard

from rolellm.data.hub.push import BEGIN, END, merge_card

OURS = "---\nlicense: mit\ntags:\n- role-playing\n- lora\n---\n\n# Model\n\nText.\n"


@pytest.fixture
def merge(tmp_path: Path) -> Any:
    def merge(ours: str, theirs: str | None) -> str:
        (tmp_path / "ours.md").write_text(ours, encoding="utf-8")
        (tmp_path / "theirs.md").write_text(theirs or "", encoding="utf-8", newline="")
        return merge_card(tmp_path / "ours.md", None if theirs is None else tmp_path / "theirs.md")

    return merge


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        pytest.param("# Hand-written\n\nYes.\n", "# Hand-written\n\nYes.", id="no-front-matter"),
        pytest.param("---\npipeline_tag: x\n---\n# Hand-written\n", "# Hand-written", id="front-matter"),
        pytest.param("Text\n\n---\n\nmore\n\n---\n", "Text\n\n---\n\nmore\n\n---", id="rules-are-no-front-matter"),
    ],
)
def test_a_readme_without_our_card_is_kept_whole(merge: Any, theirs: str, text: str) -> None:
    card = RepoCard(merge(OURS, theirs))
    assert card.text.partition(BEGIN)[0].strip() == text and card.text.rstrip().endswith(END)
    assert card.data.to_dict() == {**RepoCard(theirs).data.to_dict(), **RepoCard(OURS).data.to_dict()}


def test_comments_in_our_text_do_not_end_our_part(merge: Any) -> None:
    merged = merge(f"---\nlicense: mit\n---\nA role called {END} {BEGIN}", None)
    assert merge(OURS, merged).count("rolellm:end") == 1
