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
    parser.add_argument("--resume", action="store_true", help="go on with the unfinished run in the folder")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder")
    options = parser.parse_args()

    from rolellm.core.errors import RoleLLMError, SettingsError, StoppedShortError
    from rolellm.rocit.callbacks import stopped_short
    from rolellm.rocit.recipe import find_recipe, load_recipe
    from rolellm.runtime.threads import wait_briefly

    wait_briefly()
    try:
        recipe = load_recipe(find_recipe(options.config), options.set)
        again, instead = "the same command", " in place of --overwrite" if options.overwrite else ""
        going_on = f"{again}, with --resume{instead}"
        with stopped_short(options.out or recipe.output.dir, again=again, resume=going_on):
            from rolellm.rocit.train import is_first_process, train

            result = train(recipe, options.out, overwrite=options.overwrite, resume=options.resume)
    except StoppedShortError as stop:
        print(f"stopped: {stop}", file=sys.stderr)
        return 3
    except RoleLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    if is_first_process():
        print(json.dumps(result.to_dict(), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
