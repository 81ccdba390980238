"""Prompts as template files, and the one module that renders them."""
