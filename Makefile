# Everything here installs into .venv by itself, once; `make` alone lists what there is.
# ARGS is handed on: make demo ARGS="--json demo.json", make test ARGS="tests/tuner -k pin".

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
INSTALLED := $(VENV)/.installed
ARGS ?=

.PHONY: help demo test test-all test-vllm lint format bench docs clean

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(INSTALLED) ## serve the default model, send it real traffic and watch Paceline learn
	@$(VENV)/bin/paceline demo $(ARGS)

test: $(INSTALLED) ## the tests of every change, under 10 minutes on 2 cores
	@$(VENV)/bin/python -m pytest -m "not slow" $(ARGS)

test-all: $(INSTALLED) ## every test; leaves its result in docs/results/test-all.txt
	@$(VENV)/bin/python -m pytest --summary-file docs/results/test-all.txt $(ARGS)

test-vllm: $(INSTALLED) ## the tests against a real vLLM, which is installed into .venv-vllm
	@bash .ci/test-vllm $(ARGS)

lint: $(INSTALLED) ## ruff and mypy, as continuous integration runs them
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

format: $(INSTALLED) ## let ruff repair what it can
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: $(INSTALLED) ## arms against each other in one process
	@$(VENV)/bin/paceline bench $(ARGS)

docs: $(INSTALLED) ## make the dashboard and the documents' tables again from the code
	@$(VENV)/bin/python -m dashboards
	@$(VENV)/bin/python -m tests.documentation

clean: ## remove the virtual environments and every cache; keeps the model and the database
	@rm -rf $(VENV) .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml
	@bash .ci/install $(VENV)
	@touch $@
