# The environment is .venv in this folder. It is made on the first use and made again when requirements.txt changes.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup train test check tables doctor clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(STAMP): requirements.txt
	@echo "Setting up .venv (PyTorch alone is about 5 GB; this takes a few minutes, once)."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $(STAMP)

setup: $(STAMP) ## install everything into .venv

train: $(STAMP) ## train, by default MiTA on handwritten digits; ARGS="experiment=... key=value"
	@$(BIN)/python train.py $(ARGS)

test: $(STAMP) ## run all tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

check: $(STAMP) ## lint, import rules, tables up to date
	@$(BIN)/ruff check .
	@$(BIN)/python -m pytest tests/test_imports.py
	@$(BIN)/python tools/make_tables.py --check

tables: $(STAMP) ## write the tables again from the records
	@$(BIN)/python tools/make_tables.py

doctor: $(STAMP) ## what this machine can run, and why not the rest
	@$(BIN)/python tools/doctor.py

clean: ## remove caches; keeps .venv, outputs and results
	@rm -rf .pytest_cache .ruff_cache && find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
