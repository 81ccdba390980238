"""Builds this folder from the release: the same as ``rolellm data build --out`` with this folder named.

Usage::

    python dataset_scripts/rolebench/build.py --data-dir RELEASE
"""

import argparse
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Parse the options and build."""
    parser = argparse.ArgumentParser(description="Build the RoleBench data set folder.")
    parser.add_argument("--data-dir", type=Path, help="a local copy of the release; else $ROLEBENCH_DIR, else the Hub")
    parser.add_argument("--config", action="append", help="only this config; may be repeated")
    options = parser.parse_args()

    from rolellm.data.rolebench.build import build

    build(HERE, options.config, data_dir=options.data_dir)


if __name__ == "__main__":
    main()
