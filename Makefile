# Everything runs in .venv, which is made on first use from requirements/*.lock (scripts/setup says how).

.DEFAULT_GOAL := help
.PHONY: run test quick check lint types bounds bench soak peers agents screens lock clean help

RUN := .venv/run.stamp
DEV := .venv/dev.stamp
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

# Tests start hundreds of interpreters: they shall find their modules compiled.
unexport PYTHONDONTWRITEBYTECODE

WORKERS ?= 3 # of `make test`: a test often waits for a process, so one more than two cores
TESTS ?= tests # of `make test`: for example TESTS=tests/contract
AT_RANDOM = tests/contract/test_state_machine.py tests/unit/runtime/test_clients_at_random.py
QUICK_TESTS = tests/unit tests/contract # tests/integration starts servers: minutes

run: $(RUN) ## serve the OpenAI API with a small local model: no key of any provider needed
	@$(BIN)/holdfast serve

test: tools $(DEV) ## every test but the soak versions
	@scripts/agents test # Codex, Claude Code and the SDKs for Node
	@scripts/synapse # the homeserver of the Matrix connector
	$(PYTEST) -q -n $(WORKERS) --dist worksteal --durations 10 --durations-min 1 -m "not soak" $(TESTS)

quick: $(DEV) ## the fast tests: no browser, no PostgreSQL, no servers; under two minutes
	$(PYTEST) -q -n auto -m "not postgres and not browser and not soak and not slow" $(QUICK_TESTS)

check: lint types ## ruff, mypy --strict, and the directions of the imports
	$(PYTEST) -q tests/unit/test_layers.py

lint: $(DEV) ## ruff, and that the code is formatted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## mypy --strict
	$(BIN)/mypy

bounds: ## the wheel with the lowest and the newest versions that pyproject.toml allows
	@scripts/bounds lowest
	@scripts/bounds highest

bench: $(DEV) ## holdfast beside others, as ratios in one run
	$(BIN)/python bench/run.py

soak: tools $(DEV) ## the fault suites at full length, with their figures
	HOLDFAST_TEST_SOAK=1 $(PYTEST) -m soak -s -n 0 --timeout 0 tests/reliability tests/simulation
	HOLDFAST_TEST_SOAK=1 $(PYTEST) -n 0 --timeout 0 $(AT_RANDOM)

peers: $(DEV) ## the frameworks' own suites, against our adapters, as a table
	@scripts/peers

agents: $(DEV) ## Codex, Claude Code, opencode and others against a server; their page in the docs
	@scripts/agents grid
	$(BIN)/python -m tests.agents.run

screens: tools $(DEV) ## the picture of the dashboard in docs/images, made by its test
	HOLDFAST_TEST_SCREENS=.venv/screens $(PYTEST) -q -n 0 tests/integration/dashboard/test_screens.py
	mkdir -p docs/images && cp .venv/screens/conversation-1280-light.png docs/images/dashboard.png

lock: ## write requirements/*.lock again; UPGRADE=--upgrade takes the newest versions
	scripts/lock $(UPGRADE)

.PHONY: tools
tools: # of the system, before anything is installed
	@scripts/need-tools curl strace browser

clean: ## remove .venv and everything else that was made here
	rm -rf .venv .venv-adk .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

# A .venv that was copied here with the tree still points at the tree it came from: make it again.
ifneq ($(shell cat .venv/made-for 2>/dev/null),$(CURDIR))
.PHONY: $(RUN) $(DEV)
endif

$(RUN): requirements/run.lock requirements/openmp.lock pyproject.toml scripts/setup scripts/environments.sh
	@scripts/setup run

$(DEV): requirements/dev.lock requirements/from_source.lock requirements/openmp.lock pyproject.toml scripts/setup scripts/environments.sh
	@scripts/setup dev
