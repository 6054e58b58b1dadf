# Two commands are all that a user needs: `make serve` and `make test`. `make help` lists the rest.
# scripts/setup installs what each command needs into .venv, with the versions that constraints.txt pins.

export PYTHON ?= python3
export VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 4 # tests mostly wait: for servers, clocks and each other
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-all check generate compile fmt constraints chaos screenshots bench bench-quick docs dist clean

help: ## List the commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.%: pyproject.toml constraints.txt scripts/setup
	@scripts/setup $*
	@touch $@

setup: $(VENV)/.test-all $(VENV)/.bench ## Set up .venv with everything that any command needs.

serve: $(VENV)/.serve ## Run the service here, in memory and on SQLite, with sample rules. SERVE='--flag …' adds flags.
	@$(BIN)/headgate serve --data-dir .data --samples --drain-delay 0 --hints $(SERVE)

test: export PYTHONDONTWRITEBYTECODE := # tests start hundreds of processes: each would compile everything anew
test: $(VENV)/.test ## Lint, types and tests on real servers. ARGS='-k test_name' runs some tests alone, at once.
ifdef ARGS
	@$(BIN)/pytest $(ARGS)
else
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check compile
	$(BIN)/pytest $(PARALLEL)
endif

test-all: export PYTHONDONTWRITEBYTECODE :=
test-all: $(VENV)/.test-all ## All tests on all servers, in random order, with coverage; most of them on every Python at hand.
	@scripts/test-all $(PARALLEL)

check: $(VENV)/.test ## Lint, format, types, which module may import which, and that generated files are up to date.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@PATH=$(CURDIR)/$(BIN):$$PATH scripts/check-generated
	@$(BIN)/python scripts/check-prose

generate: $(VENV)/.test ## Write each sync module anew from its async source (src/headgate/**/async_*.py).
	@$(BIN)/python scripts/generate-sync

compile: $(VENV)/.test # Compile tests and packages once, so that not every worker does it.
	@$(BIN)/pytest --collect-only --quiet > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }

fmt: $(VENV)/.test ## Format the code.
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

constraints: $(VENV)/.test ## Write constraints.txt anew from pyproject.toml. ARGS='--upgrade' takes the newest versions.
	@scripts/constraints $(ARGS)

screenshots: $(VENV)/.test-all ## Pictures of the console's pages, light and dark, into docs/images/console.
	@$(BIN)/python -m tests.screenshots

chaos: $(VENV)/.test ## Faults under load, on real servers, and whether their bounds hold (some five minutes).
	$(BIN)/python -m tests.chaos

bench: $(VENV)/.bench ## Measure Headgate and its peers in one run (about twenty minutes), and write docs/benchmark-results.md.
	$(BIN)/python -m benchmarks
	@$(BIN)/python scripts/benchmark-results

bench-quick: $(VENV)/.bench ## All but web, service, shards and console, less exactly, in some two minutes.
	$(BIN)/python -m benchmarks --quick

docs: $(VENV)/.docs ## Build the docs as a website in site/; a broken link fails. SERVE=1 serves it while you write.
	@$(BIN)/python scripts/pictures
	@scripts/mermaid
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(if $(SERVE),serve,build --strict)

dist: $(VENV)/.dist ## Build sdist and wheel in dist/, check them, run the quickstart with the wheel, and write an SBOM.
	@scripts/dist

clean: ## Remove .venv and all caches.
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	find . -name __pycache__ -prune -exec rm -rf {} +
