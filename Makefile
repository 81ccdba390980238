# `make demo` and `make test` do all of their own set-up; a second run starts at once.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
TESTS ?= tests

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint format clean

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

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/english.py

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-inspect .venv-lighteval

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

# What these harnesses ask for contradicts what is pinned here, so each has an environment of its own on top of this one.
.venv-inspect/installed .venv-lighteval/installed: .venv-%/installed: constraints-%.txt $(VENV)/installed-dev
	$(BIN)/python -m venv --clear .venv-$*
	@path() { $$1 -c "import sysconfig; print(sysconfig.get_path('purelib'))"; }; \
	echo "import site; site.addsitedir('$$(path $(BIN)/python)')" > $$(path .venv-$*/bin/python)/parent.pth
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-$*.txt
	@touch $@
