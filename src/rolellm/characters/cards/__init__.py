"""Character cards (SillyTavern V1 to V3; JSON, PNG, CHARX): read as characters, written with all that came with them.

Start with `rolellm.characters.cards.folder`.
"""
