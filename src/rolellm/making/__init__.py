"""Stages 1 to 3: from a script, a novel or a card to a profile, questions with answers, and styled replies."""
