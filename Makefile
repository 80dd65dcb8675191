# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow lint docs dist clean

$(VENV)/.bench: pyproject.toml constraints.txt
	@echo "Installing torch and the command into $(VENV); this takes a minute or two."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

$(VENV)/.installed: $(VENV)/.bench
	@echo "Installing what the tests and the site need; this takes another minute or two."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps recbole  # for its data alone
	@touch $@

demo: $(VENV)/.bench
	$(BIN)/newton-losses demo

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=tests $(BIN)/lint-imports --no-cache
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,ray,release]'
	$(BIN)/python -m pytest -m slow

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
