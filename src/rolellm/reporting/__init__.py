"""Pages for people: tables, plots, the answer and its findings, one self-contained report, and blind ranking.

Start at `build`.
"""
