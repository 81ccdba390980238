"""The `rolellm` command: thin modules that parse options, call the library and print."""
