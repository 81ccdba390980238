"""The judges that ship: a folder each, with prompts, output schema, parser and decoding settings."""
