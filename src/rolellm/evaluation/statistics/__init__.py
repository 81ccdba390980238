"""What numbers are worth: intervals over questions, tests between models, rankings, agreement, and length control.

All intervals are percentile intervals over resampled questions, a little too narrow where questions are few. By
simulation, those that say 95 % hold the truth in 94 to 95 % of cases with 100 questions or more, in about 93.5 % with
50, 92 to 93 % with 30, and 91 to 92 % with 20. A rate near 0 or 1 needs more: what counts is its rarer outcome.
"""

from rolellm.evaluation.statistics.agreement import agreement_ci, cohen_kappa, fleiss_kappa, spearman
from rolellm.evaluation.statistics.bootstrap import (
    Bootstrap,
    Interval,
    Sample,
    Stratum,
    bootstrap_ci,
    bootstrap_stratum,
    mean_of_means,
    percentiles,
    resampled_counts,
    share_ends,
)
from rolellm.evaluation.statistics.length import LengthControl, length_control
from rolellm.evaluation.statistics.paired import PairedTest, holm, paired_test, sign_test
from rolellm.evaluation.statistics.ranking import bradley_terry, bradley_terry_ci

__all__ = [
    "Bootstrap",
    "Interval",
    "LengthControl",
    "PairedTest",
    "Sample",
    "Stratum",
    "agreement_ci",
    "bootstrap_ci",
    "bootstrap_stratum",
    "bradley_terry",
    "bradley_terry_ci",
    "cohen_kappa",
    "fleiss_kappa",
    "holm",
    "length_control",
    "mean_of_means",
    "paired_test",
    "percentiles",
    "resampled_counts",
    "share_ends",
    "sign_test",
    "spearman",
]
