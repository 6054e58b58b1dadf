# Two commands are all that a user needs: `make serve` and `make test`. `make help` lists the rest.
# Everything is set up in .venv, with the versions that constraints.txt pins; nothing is installed outside it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHARED := --numprocesses 3 --dist loadfile --no-loadscope-reorder # tests mostly wait: for servers, clocks and each other

.DEFAULT_GOAL := help
.PHONY: help setup serve test check fmt chaos bench bench-quick clean

help: ## List the commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Set up .venv with everything that the other commands need.

$(VENV)/.ready: pyproject.toml constraints.txt scripts/setup
	scripts/setup $(PYTHON) $(VENV)
	@touch $@

serve: setup ## Run the service here, in memory and on SQLite, with sample rules. SERVE='--flag …' adds flags.
	@$(BIN)/headgate serve --data-dir .data --hints $(SERVE)

test: export PYTHONDONTWRITEBYTECODE := # tests start hundreds of processes: each would compile everything anew
test: setup check ## Lint, types, and all tests on real servers.
	$(BIN)/pytest $(SHARED)

check: setup ## Lint, format, types, and which module may import which.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## Format the code.
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

chaos: setup ## Faults under load, on real servers, and whether their bounds hold (some five minutes).
	$(BIN)/python -m tests.chaos

bench: setup ## Measure Headgate beside its peers, in one run (some twenty minutes).
	$(BIN)/python -m benchmarks

bench-quick: setup ## All but web, service and shards, less exactly, in some two minutes.
	$(BIN)/python -m benchmarks --quick

clean: ## Remove .venv and all caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
