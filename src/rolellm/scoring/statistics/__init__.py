"""The worth of numbers: intervals over questions, tests between models, rankings, agreement, and length control.

Start with `rolellm.scoring.statistics.intervals`: means, shares and ranks have intervals for the tested roles and
for new ones.
"""
