"""Measures that need no files: Rouge-L of texts held in memory.

>>> rouge_l(["the raven sits still"], [["a raven", "the raven never sits"]])[0].f1
0.75
"""

from rolellm.scoring.rouge import RougeScore, rouge_l

__all__ = ["RougeScore", "rouge_l"]
