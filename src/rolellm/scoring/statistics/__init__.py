"""What numbers are worth: intervals over questions, tests between models, rankings, agreement, and length control.

Start with `rolellm.scoring.statistics.intervals`: means, shares and ranks have intervals for the tested roles and
for new ones. Only length-controlled rates resample questions; these percentile intervals
are a little too narrow where questions are few. By simulation, they hold the truth in 94 to 95 % of cases with 100
questions or more, in about 93.5 % with 50, 92 to 93 % with 30, and 91 to 92 % with 20.
"""
