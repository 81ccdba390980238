"""What numbers are worth: intervals over questions, tests between models, rankings, agreement, and length control.

All intervals are percentile intervals over resampled questions, a little too narrow where questions are few. By
simulation, those that say 95 % hold the truth in 94 to 95 % of cases with 100 questions or more, in about 93.5 % with
50, 92 to 93 % with 30, and 91 to 92 % with 20. A rate near 0 or 1 needs more: what counts is its rarer outcome.
"""
