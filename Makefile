# Every target sets up what it needs by itself, in .venv.
#   demo      samplers compared, and the paper's two examples; figures in out/demo
#   test      the tests that take minutes, examples of README, docs and docstrings among them
#   test-all  what `test` leaves out: tests marked slow, then those marked timing, one at a time
#   lint      format, style and types
#   docs      the site; a broken link, anchor or reference is an error
#   report    the pages that judge the paper, and their figures, from results/
# .ci/run runs them all, and no test twice.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-all lint format docs report bench clean

demo: $(VENV)/.demo
	$(BIN)/python examples/compare_samplers.py --out out/demo
	$(BIN)/python experiments/paper examples --out out/demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not timing"

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadfile -m "slow and not timing" tests
	$(BIN)/python -m pytest -m timing tests

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict

report: $(VENV)/.dev
	$(BIN)/python experiments/paper report

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/core.py --out benchmarks/results

clean:
	rm -rf $(VENV) $(VENV)-* site out

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvib needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable ".[demo]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable ".[dev]"
	touch $@ $(VENV)/.demo
