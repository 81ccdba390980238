"""Scripts of every kind, read as turns: who says what, in which scene, and where it is in the source."""
