# The words people type: plain `make` lists them, CI runs the same ones. What takes more than a line or two is in scripts/.
ENGINE ?= duckdb
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHON BENCH
# Where this is set each of the processes that tests start compiles all of the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo shop check test lint docs bench results test-wheel soak clean

help: ## list these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the environment in .venv (PYTHON=... chooses the interpreter)

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@scripts/setup $(VENV) && touch $@

demo: $(STAMP) ## run the main job on real flights (ENGINE=duckdb or spark)
	$(BIN)/python examples/flights/main.py --engine $(ENGINE) $(ARGS)

shop: $(STAMP) ## run the shop: Postgres, Kafka, sources, a stream, a training dataset
	$(BIN)/python examples/shop/main.py $(ARGS)

test: $(STAMP) ## run every test (WORKERS=1 for one process, ARGS="-k name" to choose)
	@$(BIN)/python -m tests.fetch
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --times $(ARGS)

check: $(STAMP) ## run the tests of the inner loop: the core on DuckDB, two minutes
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --times --inner-loop -m 'not spark and not soak and not slow and not hypothesis and not tensorflow and not petastorm and not postgres' $(ARGS)

lint: $(STAMP) ## ruff, mypy, import-linter, dead code, how the code reads
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy && $(BIN)/lint-imports --no-cache
	scripts/dead-code $(BIN)/vulture && $(BIN)/python scripts/house.py --check

docs: $(STAMP) ## build the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP) ## run the benchmarks (BENCH=name chooses one, ARGS=--quick makes them small)
	@scripts/bench $(BIN)/python $(ARGS)

results: $(STAMP) ## render benchmarks/RESULTS.md from benchmarks/results/*.json
	$(BIN)/python benchmarks/report.py

test-wheel: $(STAMP) ## build sdist and wheel, try the wheel in a bare environment
	@scripts/test-wheel $(BIN)/python

soak: $(STAMP) ## run the tests that take minutes
	$(BIN)/pytest -m soak $(ARGS)

clean: ## remove what demo, tests and builds left behind
	rm -rf build dist site examples/*/build featurestore-data spark-warehouse metastore_db derby.log .*_cache
