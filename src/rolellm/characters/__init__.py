"""Characters as data: scripts, cards, lore and the folder of a character. Start at `folder`."""
