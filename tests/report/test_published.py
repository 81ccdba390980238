import pytest

from rolellm.report.published import PUBLISHED, WIN_RATES
from rolellm.report.tables import published_table, to_markdown
from rolellm.rolebench.schema import CONFIGS

# Three published averages do not follow from their own rows.
ODD = {("role-generalization-eng", system) for system in ("LLaMA", "Alpaca", "Vicuna")}


def test_the_tables_are_those_of_configs_that_exist() -> None:
    assert set(PUBLISHED) == set(WIN_RATES) == {name for name in PUBLISHED if name in CONFIGS}
    assert [len(table.rows) for table in PUBLISHED.values()] == [6, 4, 5]


def test_averages_follow_from_the_scores_but_for_three() -> None:
    for config, table in PUBLISHED.items():
        for row in table.rows:
            follows = (row.cus + row.raw + row.spe) / 3 == pytest.approx(row.avg, abs=1e-4)
            assert follows is ((config, row.system) not in ODD), row


def test_the_baseline_rows_that_scoring_must_reproduce() -> None:
    spe = {config: table.rows[0].spe for config, table in PUBLISHED.items() if table.rows[0].system == "RoleGPT"}
    assert spe["instruction-generalization-eng"] == 0.3229
    assert spe["instruction-generalization-zh"] == 0.2478


def test_shows_like_our_own() -> None:
    shown = to_markdown(published_table(PUBLISHED["instruction-generalization-zh"]))
    assert "| RoleGLM | 0.5049 | 0.5255 | 0.3406 | 0.4570 |" in shown
    assert "arXiv 2310.00746" in shown and "protocol paper" in shown
