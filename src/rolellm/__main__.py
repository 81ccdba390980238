"""``python -m rolellm`` is the same as ``rolellm``."""

from rolellm.cli.app import main

if __name__ == "__main__":
    main()
