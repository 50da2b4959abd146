PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
.PHONY: help install run test test-long test-integration test-fault check format lint typecheck imports protos protos-check docs settings bench bench-table bench-checkpoint bench-cluster bench-train bench-reading bench-serving images up down clean

help: ## Print the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

$(VENV)/.installed-services $(VENV)/.installed-test $(VENV)/.installed-dev: $(VENV)/.installed-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Megalith needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Megalith with [$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(subst test,services$(COMMA)test,$*)]'
	@touch $@

COMMA := ,

install: $(VENV)/.installed-dev ## Make .venv with everything for development

run: $(VENV)/.installed-services ## Train the demo task on a local cluster: controller, 2 ps, 2 workers, appmaster
	@$(BIN)/megalith train clicks --ps 2 --workers 2

test: $(VENV)/.installed-test ## Set up and run all tests, two files at a time
	@$(BIN)/python -c 'from megalith.ps.warm_up import warm_up; warm_up()'  # compile once, before many servers start at once
	@$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 --durations=20

test-long: $(VENV)/.installed-test ## The tests marked `long`, and the rounds and the stress at length
	@$(BIN)/python -c 'from megalith.ps.warm_up import warm_up; warm_up()'
	@scripts/test-long.sh $(BIN)/python

test-integration: $(VENV)/.installed-test ## Only the tests with real servers in one process
	@$(BIN)/python -m pytest tests/integration

test-fault: $(VENV)/.installed-test ## Only the tests that kill real processes
	@$(BIN)/python -m pytest tests/fault

check: install protos-check lint typecheck imports docs test ## Everything that must hold before a change lands

format: install ## Format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: install ## Check format and lint
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

typecheck: install ## mypy --strict over both source roots and the examples
	@$(BIN)/mypy services client examples

imports: install ## Check that the arrows between packages point one way
	@$(BIN)/lint-imports

protos: install ## Regenerate client/megalith/protos
	@scripts/protos.sh

protos-check: install ## Fail if the generated code is not what protos/ gives
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && scripts/protos.sh "$$tmp" && \
	diff -ru -x __init__.py -x py.typed -x __pycache__ "$$tmp/megalith/protos" client/megalith/protos && echo "protos: no drift"

docs: install ## Build the documentation into site/; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "documentation: open site/index.html"

settings: install ## Write docs/settings.md from the dataclasses of the settings
	@$(BIN)/python -m megalith.runner.settings_page > docs/settings.md

bench: $(VENV)/.installed-test ## Run the benchmarks; prints JSON lines
	@$(BIN)/python tests/benchmarks/run.py

bench-table: $(VENV)/.installed-test ## Speed and memory of an embedding table; prints JSON lines
	@$(BIN)/python tests/benchmarks/table.py

bench-checkpoint: $(VENV)/.installed-test ## Saves, increments and restores against plain writes; prints JSON lines
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/checkpoint.py

bench-cluster: $(VENV)/.installed-test ## Pull, push and training against a cluster of processes; prints JSON lines
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/cluster.py

bench-train: $(VENV)/.installed-test ## Training of click models: in one process, on a cluster, with PyTorch; prints JSON lines
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/train.py

bench-serving: $(VENV)/.installed-test ## How fresh replicas are, and how fast they answer; prints JSON lines
	@PYTHONPATH=tests $(BIN)/python tests/benchmarks/serving.py

bench-reading: $(VENV)/.installed-test ## Rows per second from files and Kafka to batches of ids; prints JSON lines
	@OPENBLAS_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/benchmarks/reading.py

images: ## Build the container image
	@docker compose build

up: ## Start the cluster in containers
	@docker compose up -d --build

down: ## Stop the containers; the volume with the model stays
	@docker compose down

clean: ## Remove the environment, caches and the demo's model
	@scripts/test-services stop
	@rm -rf $(VENV) .test-services .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist site model
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
