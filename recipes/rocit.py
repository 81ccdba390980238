"""RoCIT: role-conditioned instruction tuning from a YAML recipe, on one process or many.

    accelerate launch recipes/rocit.py --config recipes/smoke-cpu.yaml
    accelerate launch recipes/rocit.py --config recipes/smoke-cpu.yaml --out runs/mine --set training.epochs=2

``rolellm train RECIPE.yaml`` runs the same code in one process.
"""

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    """Read the recipe, carry it out, print the result as one JSON object; return the exit code."""
    parser = argparse.ArgumentParser(description="Role-conditioned instruction tuning from a YAML recipe.")
    parser.add_argument("--config", required=True, help="the recipe: a YAML file, or the name of one that ships")
    parser.add_argument("--out", type=Path, help="the run's folder, in place of output.dir")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one value")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder")
    options = parser.parse_args()

    from rolellm.errors import RecipeError, RoleLLMError
    from rolellm.rocit.config import find_recipe, load_recipe
    from rolellm.rocit.threads import wait_briefly
    from rolellm.rocit.trainer import is_first_process, train

    wait_briefly()
    try:
        recipe = load_recipe(find_recipe(options.config), options.set)
        result = train(recipe, options.out, overwrite=options.overwrite)
    except RoleLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, RecipeError) else 1
    if is_first_process():
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
