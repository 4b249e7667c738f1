## make quickstart    set everything up and train the built-in example
## make setup         set up .venv for developing mtrain
## make check         lint, types and tests; must pass before a change is merged
## make test          the quick tests
## make test-slow     the tests that take some seconds or minutes
## make test-faults   the tests of all injected faults
## make fuzz          random hostile input
## make format        format the code
## make bench         measure speed
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
# exits with a message and code 1 if Python is too old
CHECK := import sys; sys.exit(sys.version_info < (3, 11) and \
	"mtrain needs Python 3.11 or newer: name it, as in PYTHON=python3.12")
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
# hides setuptools' long warning about editable installs
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet

.PHONY: help setup quickstart test test-slow test-faults fuzz lint typecheck check format bench

help:
	@sed -n 's/^## //p' Makefile

setup: $(READY)

$(INSTALLED): pyproject.toml scripts/constraints.txt
	@$(PYTHON) -c '$(CHECK)'
	@$(BIN)/python -c '$(CHECK)' 2> /dev/null || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch and the other packages: some minutes"
	$(PIP) --upgrade pip
	$(PIP) torch==2.13.0
	$(PIP) --constraint scripts/constraints.txt --editable .
	touch $(INSTALLED)

$(READY): $(INSTALLED)
	$(PIP) --constraint scripts/constraints.txt --editable '.[dev]'
	touch $(READY)

quickstart: $(INSTALLED)
	$(BIN)/mtrain train --config configs/quickstart.yaml
	@printf "\nSome translations by the model just trained:\n\n"
	@$(BIN)/mtrain translate -m runs/quickstart -i scripts/quickstart.txt \
		| paste -d "\n" scripts/quickstart.txt - | sed "n;s/^/    /;G"

test: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-slow: setup
	$(BIN)/python -m pytest -m slow --numprocesses 2 --dist worksteal

test-faults: setup
	$(BIN)/python -m pytest tests/faults --all-faults

# SECONDS=1800 runs longer, SEED=1 repeats the same cases, CASE=17 runs a single case
fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m faults.fuzz \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: setup
	$(BIN)/mypy

check: lint typecheck test

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python scripts/benchmark.py
