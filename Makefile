# On a fresh machine with Python >= 3.11, pip and make: `make demo` and `make test` each set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Written last, so an interrupted set-up leaves none and is taken up again.
STAMP := $(VENV)/.set-up-finished
# One process of tests for each core; past 8 their start costs more than they save. Tests go out one by one, since some
# take a thousand times as long as others.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 8 --maxschedchunk 1

.DEFAULT_GOAL := help
.PHONY: help setup demo lint test test-all docs tutorials clean

help:
	@echo "make demo      set up, then train and show a small joint model of digits"
	@echo "make test      set up, then ruff, mypy and the fast tests"
	@echo "make test-all  set up, then the slow tests that 'make test' leaves out"
	@echo "make docs      set up, then build the documentation into site/; warnings are errors"
	@echo "make tutorials set up, then execute the notebooks and write their pages and pictures"
	@echo "make lint      set up, then ruff and mypy alone"
	@echo "make setup     build $(VENV), or reuse it while pyproject.toml and constraints.txt stay as they are"
	@echo "make clean     remove $(VENV), caches and build outputs; runs/ is kept"
	@echo "Another Python: make PYTHON=python3.12 test (after 'make clean', if $(VENV) exists)"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	@command -v $(PYTHON) >/dev/null || { \
		echo "set-up: '$(PYTHON)' was not found; name a Python >= 3.11, as in: make PYTHON=python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "set-up: '$(PYTHON)' is $$($(PYTHON) -V 2>&1), but jointenergy needs Python >= 3.11; name one," \
			"as in: make PYTHON=python3.12 setup" >&2; exit 1; }
	@if [ "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V 2>&1)" ] && $(BIN)/python -m pip --version >/dev/null 2>&1; \
		then echo "set-up: reusing $(VENV)"; \
		else echo "set-up: building $(VENV)"; $(PYTHON) -m venv --clear $(VENV); fi
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip check
	@$(BIN)/python scripts/check_setup.py
	@touch $@

demo: setup
	$(BIN)/jointenergy demo

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: lint
	$(PYTEST)

# pytest leaves with 5 when it selected no test at all; a tree without slow tests is no failure.
test-all: setup
	@echo "$(PYTEST) -m slow --durations=10"
	@$(PYTEST) -m slow --durations=10 || { \
		status=$$?; [ $$status -eq 5 ] && echo "test-all: no test is marked slow" || exit $$status; }

# A notice of the theme's makers is left out: it is not about these pages.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

tutorials: setup
	$(BIN)/python scripts/write_tutorials.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist site src/*.egg-info
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
