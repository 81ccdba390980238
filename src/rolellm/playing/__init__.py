"""Talking to a role: a player, talks that last, and a server that speaks OpenAI's protocol.

Start with `rolellm.playing.player`.
"""
