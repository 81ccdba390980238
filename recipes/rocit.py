"""RoCIT: role-conditioned instruction tuning from a YAML recipe, on one process or many.

    accelerate launch recipes/rocit.py --config recipes/smoke-cpu.yaml
    accelerate launch recipes/rocit.py --config recipes/smoke-cpu.yaml --out runs/mine --set training.num_train_epochs=2

``rolellm train RECIPE.yaml`` runs the same code in one process.
"""

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    """Read the recipe, carry it out, print the result as one JSON object; return the exit code."""
    parser = argparse.ArgumentParser(description="Role-conditioned instruction tuning from a YAML recipe.")
    parser.add_argument("--config", required=True, help="recipe: a YAML file, or the name of one that ships")
    parser.add_argument("--out", type=Path, help="the run's folder, in place of output.dir")
    parser.add_argument("--base", metavar="FOLDER|HUB_ID", help="model to tune, in place of the recipe's base")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one value")
    parser.add_argument("--resume", action="store_true", help="continue the unfinished run in the folder")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    options = parser.parse_args()

    from rolellm.core.errors import RoleLLMError, SettingsError, StoppedShortError
    from rolellm.core.threads import wait_briefly
    from rolellm.training.recipe_files import load_recipe
    from rolellm.training.run_folder import explain_stop

    wait_briefly()
    try:
        recipe = load_recipe(options.config, options.set, base=options.base)
        folder = options.out or recipe.output.dir
        again, instead = "the same command", " in place of --overwrite" if options.overwrite else ""
        going_on = f"{again}, with --resume{instead}"
        with explain_stop(folder, again=again, resume=going_on):
            from accelerate import PartialState

            from rolellm.training.train import train

            run = train(recipe, out=folder, overwrite=options.overwrite, resume=options.resume)
    except StoppedShortError as stop:
        print(f"stopped: {stop}", file=sys.stderr)
        return 3
    except RoleLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    if PartialState().is_main_process:
        print(json.dumps(run.to_dict(), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
