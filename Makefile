# `make demo` and `make test` do all of their own set-up; a second run starts at once.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
TESTS ?= tests

PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(PARALLEL)
# Environments on top of .venv, each with the versions in its constraints-NAME.txt.
OVERLAYS := inspect lighteval lowest newest core

.PHONY: demo test test-all test-versions overlays lint docs format clean

demo: $(VENV)/installed-demo
	$(BIN)/rolellm demo

# A file's tests stay in one process, so that what they share is made once.
test: $(VENV)/installed-dev
	$(PYTEST) -m "not slow and not browser" $(TESTS)

# The same, then the slow tests and those of pages in a browser, which pip cannot install.
test-all: test .venv-inspect/installed .venv-lighteval/installed
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ echo "Chromium and its driver are missing; on Debian: apt-get install chromium chromium-driver"; exit 1; }
	$(PYTEST) -m "slow or browser" $(TESTS)

# The quick tests and what goes on from checkpoints (marked `versions`), beside the lowest versions that pyproject.toml
# allows, and the newest; then what loading and scoring need, beside the oldest releases that others' trainers pin.
test-versions: .venv-lowest/installed .venv-newest/installed .venv-core/installed
	for versions in lowest newest; do \
		.venv-$$versions/bin/python -m pytest $(PARALLEL) -m "versions or not slow and not browser" $(TESTS) || exit 1; \
	done
	.venv-core/bin/python -m pytest $(PARALLEL) -W ignore::pytest.PytestUnraisableExceptionWarning \
		-m "not slow and not browser" tests/data tests/scoring/test_rouge.py tests/scoring/test_score.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/english.py

# The pages and the reference as a site in site/; a broken link or a docstring that cannot be read is an error.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(OVERLAYS:%=.venv-%) site

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; name one: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "The venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }

# The dev extra contains the demo extra, so installing the first serves both.
$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(VENV)/installed-demo $@

$(VENV)/installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[demo]"
	@touch $@

overlays: $(OVERLAYS:%=.venv-%/installed)

$(OVERLAYS:%=.venv-%/installed): .venv-%/installed: constraints-%.txt $(VENV)/installed-dev
	$(BIN)/python -m venv --clear .venv-$*
	@path() { $$1 -c "import sysconfig; print(sysconfig.get_path('purelib'))"; }; \
	echo "import site; site.addsitedir('$$(path $(BIN)/python)')" > $$(path .venv-$*/bin/python)/parent.pth
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-$*.txt
	@sed '1s|.*|#!$(CURDIR)/.venv-$*/bin/python|' $(BIN)/rolellm > .venv-$*/bin/rolellm && chmod +x .venv-$*/bin/rolellm
	@touch $@
