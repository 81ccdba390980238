from dataclasses import replace
from pathlib import Path

import pytest

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.scoring.published import PUBLISHED, content_hash, published_for
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.score_report import published_table

# Three published averages do not follow from their own rows.
ODD = {("role-generalization-eng", system) for system in ("LLaMA", "Alpaca", "Vicuna")}


def test_averages_follow_from_the_scores_but_for_three() -> None:
    for config, table in PUBLISHED.items():
        for system, (*scores, average) in table.rows.items():
            follows = sum(scores) / 3 == pytest.approx(average, abs=1e-4)
            assert follows is ((config, system) not in ODD), system


def test_shows_like_our_own() -> None:
    shown = published_table(PUBLISHED["instruction-generalization-zh"]).to_markdown()
    assert "| RoleGLM | 0.505 | 0.525 | 0.341 | 0.457 |" in shown
    assert "arXiv 2310.00746" in shown and "protocol paper" in shown


ZH = "instruction-generalization-zh"


def test_rows_that_only_share_a_configs_name_are_not_the_release(rows: list[Row]) -> None:
    assert published_for(ZH, "test", rows) is None and published_for(ZH, "test", []) is None
    assert published_for("sample", "test", rows) is None
    # As many rows as the release has, but others.
    many = [replace(rows[0], id=str(at), role=str(at)) for at in range(PUBLISHED[ZH].released["general"][0])]
    assert published_for(ZH, "test", many) is None


def test_the_content_counts_and_not_the_order_or_the_ids(rows: list[Row]) -> None:
    again = [replace(row, id=f"other {row.id}") for row in reversed(rows)]
    assert content_hash(again) == content_hash(rows)
    changed = replace(rows[0], references=(*rows[0].references, "\ud800"))
    assert content_hash([changed, *rows[1:]]) != content_hash(rows)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
@pytest.mark.parametrize("config", PUBLISHED)
def test_the_release_is_known_for_itself(config: str, real_release: Path) -> None:
    rows = read_dataset_rows(load_rolebench(config, "test", data_dir=real_release))
    assert published_for(config, "test", rows) is PUBLISHED[config]
    assert published_for(config, "train", rows) is None
    assert published_for(config, "test", rows[1:]) is None
    other = next(one for one in PUBLISHED if one != config)
    assert published_for(other, "test", rows) is None
