# Development commands. `make` without a target lists them; CI runs the same targets. Longer commands are in scripts/.
ENGINE ?= duckdb
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# `make check` runs these. Connections to other systems, and features built on top of the store, have
# their own folders, so that the inner loop does not grow with them.
CORE := aggregates cli deltalog engines featuregroups formats hashing ingest jobs model readers recovery registry retrieval
CORE += statistics store training usersql validation
CORE := $(CORE:%=tests/%) $(wildcard tests/test_house_*.py)
NOT_IN_CHECK := services or soak or slow or hypothesis or tensorflow or petastorm
export PYTHON BENCH
# Without bytecode files, every process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo shop check test test-services lint docs bench results test-wheel soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create the environment in .venv (PYTHON=... selects the interpreter)

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@scripts/setup $(VENV) && touch $@

demo: $(STAMP) ## run the flights example from end to end (ENGINE=duckdb or spark)
	$(BIN)/python examples/flights/main.py --engine $(ENGINE) $(ARGS)

shop: $(STAMP) ## run the shop example: Postgres, Kafka, sources, a stream, a training dataset
	$(BIN)/python examples/shop/main.py $(ARGS)

test: $(STAMP) ## run all tests except soak tests (WORKERS=1 for one process, ARGS="-k name" to select tests)
	@$(BIN)/python -m tests.fetch
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --times --hints $(ARGS)

test-services: $(STAMP) ## run the part of the tests that starts servers, JVMs and browsers, or kills processes
	@$(BIN)/python -m tests.fetch
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --times --hints -m 'services and not soak' $(ARGS)

check: $(STAMP) ## run the fast tests: the core on DuckDB, about two minutes
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --times --hints -m 'not ($(NOT_IN_CHECK))' $(CORE) $(ARGS)

lint: $(STAMP) ## run ruff, mypy, import-linter, and the checks for dead code and readability
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy && $(BIN)/lint-imports --no-cache
	scripts/dead-code $(BIN)/vulture && $(BIN)/python scripts/house.py --check && $(BIN)/python scripts/calls.py --check

docs: $(STAMP) ## build the documentation in site/, and check its links, spelling and prose; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/codespell *.md docs examples featurestore connectors && $(BIN)/python scripts/prose.py

bench: $(STAMP) ## run the benchmarks (BENCH=name selects one, ARGS=--quick uses little data)
	@scripts/bench $(BIN)/python $(ARGS)

results: $(STAMP) ## render benchmarks/RESULTS.md from benchmarks/results/*.json
	$(BIN)/python benchmarks/report.py

test-wheel: $(STAMP) ## build the sdist and the wheel, and test the wheel in a new environment
	@scripts/test-wheel $(BIN)/python

soak: $(STAMP) ## run the soak tests, which take minutes each
	$(BIN)/pytest -m soak $(ARGS)

clean: ## remove the output of builds, tests and examples
	rm -rf build dist site examples/*/build featurestore-data spark-warehouse metastore_db derby.log .*_cache
