"""Whole ways through the library in one call: `eval`, from models to what their numbers say.

Each calls what the single commands call, in one folder. Start reading at `rolellm.journeys.evaluation`.
"""
