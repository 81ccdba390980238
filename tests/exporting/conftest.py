from ..training.conftest import write_recipe  # noqa: F401  # fixture
