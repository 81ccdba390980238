"""Tests of a character, as the maker of a card runs them in CI: a file of assertions, a run, a pytest plugin.

Start at `suite`: what a file may say, and how a reply is judged. `run` asks the model.
"""
