"""Talking to a role: a player, a chat, and a server that speaks OpenAI's protocol.

Start with `rolellm.playing.player`.
"""
