# Every target sets up its own environment first (.ci/setup); a second run starts at once.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo demo-gpu demo-smollm2 quick test test-ci test-all chaos lint lint-style bench screenshots lock maxtext-check proto clean

SEED ?= 0
CUDA ?= cuda12
ARGS ?= configs/demo.yml steps=20 --seed 1 --kills 4
export PYTHON VERSION
BIN := .venv/bin
READY := .venv/.complete
PROTO := rlax_plugin/rpc/rlax.proto
# Three on the usual two cores: a fifth of the time, tests wait for processes that they started.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder \
	--second-chance --durations 15
# The rules of the house, and those of its pages that no program has to be started for: cheap, and
# what a change breaks most often.
RULES := tests/unit/house $(addprefix tests/unit/docs/test_, docs_config.py docs_inputs.py \
	docs_moving.py docs_objectives.py docs_pages.py)
TYPES := PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

help: ## this list
	@echo "rlax_plugin: reinforcement learning for language models on MaxText, as plug-ins"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  Start with make demo. To run your own: $(BIN)/rlax --help"

install: $(READY) ## only what every target does first: .venv with all packages; minutes
	@echo "installed: source .venv/bin/activate puts rlax on PATH"

demo: $(READY) ## a tiny model learns arithmetic by RL; before/after table (SEED=0)
	@$(BIN)/rlax train configs/demo.yml run_name=demo-seed$(SEED) rlax.seed=$(SEED) init_weights_seed=$(SEED)

demo-gpu: $(READY) ## the demo on one GPU, in one process; nobody has run it yet (CUDA=cuda12, SEED=0)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint requirements.lock 'jax[$(CUDA)]'
	@$(BIN)/rlax train configs/demo_colocated.yml run_name=demo-gpu-seed$(SEED) hardware=gpu \
		rlax.seed=$(SEED) init_weights_seed=$(SEED)

demo-smollm2: $(READY) ## SmolLM2-135M, pretrained, learns a task by RL; minutes, 10 GB (SEED=0)
	@.ci/smollm2
	@$(BIN)/rlax train configs/smollm2_largest.yml run_name=smollm2-largest-seed$(SEED) rlax.seed=$(SEED)
	@$(BIN)/rlax report runs/smollm2-largest-seed$(SEED)
	@rm -rf runs/smollm2-largest-seed$(SEED)/huggingface
	@$(BIN)/rlax export runs/smollm2-largest-seed$(SEED) --out runs/smollm2-largest-seed$(SEED)/huggingface

# pyright computes on one core only, about as long as the tests of the rules: beside them.
quick: $(READY) lint-style ## lint, types, import rules, tests of pages and of the house: a commit's
	@said=$$(mktemp); $(TYPES) > "$$said" 2>&1 & types=$$!; \
	trap 'kill $$types 2> /dev/null || true; rm -f "$$said"' EXIT; \
	status=0; $(PYTEST) -m "not long and not ci" $(RULES) || status=$$?; \
	wait $$types || status=$$?; \
	echo "pyright:" && cat "$$said"; exit $$status

test: quick ## make quick, then every test but the long ones: what a change needs
	@.ci/browser
	@$(PYTEST) -m "not long and not ci" $(RULES:%=--ignore=%)

test-ci: $(READY) ## of the long tests those that CI runs as well: recovery, numbers, doors
	@.ci/browser
	@$(PYTEST) -m ci

test-all: $(READY) ## every long test, and the property tests with ten times the examples
	@.ci/browser
	@RLAX_TEST_EXAMPLES_TIMES=10 $(PYTEST) -m "long or ci or property"

chaos: $(READY) ## a run whose processes are killed and frozen by a seed (ARGS='CONFIG --seed 1')
	@PYTHONPATH=tests $(BIN)/python -P -m chaos.command $(ARGS)

lint: lint-style ## ruff, import rules, types; seconds
	@echo "pyright:" && $(TYPES)

lint-style: $(READY)
	@echo "ruff:" && $(BIN)/ruff check --no-cache && $(BIN)/ruff format --no-cache --check
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lint-imports --no-cache

bench: $(READY) ## the whole system beside loops without a controller; minutes (see benchmarks/)
	@$(BIN)/python benchmarks/bench.py

screenshots: $(READY) ## docs/images again, of a run made in seconds (or RUN=runs/demo-seed0)
	@.ci/browser
	@PYTHONPATH=tests/integration:tests/helpers $(BIN)/python docs/images/screenshots.py $(RUN)

lock: $(READY) ## requirements.lock again from pyproject.toml, keeping versions (UPGRADE=1: newest)
	@$(BIN)/uv pip compile pyproject.toml --extra dev --python-version 3.12 --quiet \
		--no-header --no-annotate --no-emit-index-url $(if $(UPGRADE),--upgrade) \
		--output-file requirements.lock
	@echo "wrote requirements.lock: $$(grep -c '==' requirements.lock) packages"

maxtext-check: $(READY) ## diffs of the upstream symbols in use, between MaxText versions (VERSION=0.2.6)
	@: $${VERSION:?is the version to compare with, such as 0.2.6}
	@$(BIN)/python tests/helpers/maxtext_check.py "$(VERSION)"

proto: $(READY) ## the gRPC code in rlax_plugin/rpc again from rlax.proto
	@$(BIN)/python -m grpc_tools.protoc -I. \
		--python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)
	@echo "wrote rlax_plugin/rpc/rlax_pb2.py, rlax_pb2.pyi, rlax_pb2_grpc.py"

clean: ## removes .venv, caches and build output; keeps runs/
	@rm -rf .venv .cache dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "removed .venv, caches and build output; kept runs/"

$(READY): requirements.lock pyproject.toml .ci/setup
	@.ci/setup
