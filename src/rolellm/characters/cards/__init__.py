"""Character cards (SillyTavern V1 to V3; JSON, PNG, CHARX): read as characters, written as V3.

Start with `rolellm.characters.folder`, which imports and exports them.
"""
