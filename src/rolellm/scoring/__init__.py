"""Predictions and their scores. Start at `generate` (a model answers rows) and `score` (CUS, RAW, SPE, intervals)."""
