"""Publishing to the Hugging Face Hub: a folder becomes one commit, for models and data sets alike."""

from rolellm.data.hub.push import Pushed, PushOptions, check_login, check_push, check_repo, push_folder

__all__ = ["PushOptions", "Pushed", "check_login", "check_push", "check_repo", "push_folder"]
