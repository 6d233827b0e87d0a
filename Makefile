# The environment is .venv in this folder: made on first use, brought up to date when requirements.txt changes.
PYTHON ?=
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup environment train test check tables doctor clean

help: ## show this list
	@echo 'usage: make TARGET [ARGS="..."] [PYTHON=python3.11]'
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

environment:
	@PYTHON='$(PYTHON)' bash scripts/setup.sh

setup: environment ## install everything into .venv
	@echo ".venv is ready."

train: environment ## train, by default MiTA on handwritten digits; ARGS="experiment=NAME key=value"
	@$(BIN)/python train.py $(ARGS)

test: environment ## run all tests; ARGS="tests/attention -k ties" runs some
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

check: environment ## lint, format, import rules, tables up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m pytest -qq tests/test_imports.py
	@$(BIN)/python tools/make_tables.py --check

tables: environment ## write the tables again from the records
	@$(BIN)/python tools/make_tables.py $(ARGS)

doctor: environment ## what this machine can run, and why not the rest; ARGS="--imagenet FOLDER"
	@$(BIN)/python tools/doctor.py $(ARGS)

clean: ## remove caches; keeps .venv, outputs and results
	@rm -rf .pytest_cache .ruff_cache build *.egg-info
	@find . -path ./.venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
