"""Judging: language models rank answers by style and role knowledge, their biases measured next to their verdicts.

Start at `run` (one judging run), then `requests` (how a judge is asked and read) and `result` (what comes of it).
"""
