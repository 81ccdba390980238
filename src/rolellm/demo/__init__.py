"""The whole loop on the embedded sample: make roles of scripts; answer, score, tune, do both again; judge; report.

Offline, on a CPU, in minutes. What it runs are the functions behind ``rolellm role``,
``instruct``, ``respond``, ``train``, ``generate``, ``score``, ``judge`` and ``report``.
"""

from rolellm.demo.loop import BASELINE, TUNED, UNTUNED, DemoResult, run_whole_loop
from rolellm.demo.making import make_roles

__all__ = ["BASELINE", "TUNED", "UNTUNED", "DemoResult", "make_roles", "run_whole_loop"]
