"""Scenes: several characters, each of whom sees only what it witnessed; CoSER's benchmark (arXiv 2502.09082).

`scene` reads a scene's file, `visibility` says what a character sees of it, `play` plays it, and `coser` reads and
scores CoSER's rows. Start with `play`.
"""
