# Every target does its own set-up in .venv; `make help` lists them.
#   PYTHON=python3.12    the interpreter that .venv is made from
#   HEADRACE_NATIVE=OFF  install without the C++ kernels
#   HEADRACE_KERNELS=all  build the kernels of every CPU for demo and serve, too
#   WORKERS=4            processes that `make test` shares the tests between
#   ARGS="..."           more arguments for the command that demo, serve, test or test-long runs

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo serve test test-long sanitize browser lint style types bench bench-peers clean native wheel interpreter

BIN := .venv/bin
WORKERS := $(shell echo $$(($$(nproc) + 2))) # servers under test wait for much of the time
# Each worker starts with its share of the tests, in order, so that tests of one file share their servers;
# one that has finished takes half of what another has left.
PARALLEL := -n $(WORKERS) --dist worksteal

# An installed set is up to date until the project file, the C++ sources, the set of Python modules, this folder's
# place or the CPU changes. (An editable install follows changes inside modules by itself, but maps each module to its file.)
TREE := $(shell { pwd -P; grep -m1 ^flags /proc/cpuinfo; find src -name '*.py' | LC_ALL=C sort; } | cksum | cut -d' ' -f1)
SOURCES := pyproject.toml CMakeLists.txt tools/setup.sh $(shell find csrc -type f)
SERVER := .venv/.installed-server-$(TREE)
DEV := .venv/.installed-dev-$(TREE)

help:
	@echo 'make demo       generate with the bundled model, with live numbers'
	@echo 'make serve      serve the bundled model, OpenAI-compatible'
	@echo 'make test       lint, types, import contracts and tests'
	@echo 'make test-long  the tests that take long, make sanitize among them'
	@echo 'make sanitize   the C++ kernels under the sanitizers of the compiler'
	@echo 'make browser    install Debian'"'"'s Chromium, for the tests of the web page; needs root'
	@echo 'make lint       lint, types and import contracts'
	@echo 'make bench      latency and throughput of the bundled model'
	@echo 'make bench-peers  the same work on other engines: installs them, measures, writes docs/results.md'
	@echo 'make native     build the C++ kernels again'
	@echo 'make wheel      a wheel with all kernels, in dist, for machines without a compiler'
	@echo 'make clean      remove build folders and caches; .venv stays'
	@echo 'Each sets up what it needs in .venv first.'

$(SERVER): $(SOURCES)
	@tools/setup.sh server $@

$(DEV): $(SOURCES)
	@tools/setup.sh dev $@

ifdef PYTHON
$(SERVER) $(DEV): | interpreter
interpreter:
	@tools/setup.sh interpreter
endif

demo: $(SERVER)
	@$(BIN)/headrace demo $(ARGS)

serve: $(SERVER)
	@$(BIN)/headrace serve tale $(ARGS)

bench: $(DEV)
	$(BIN)/headrace bench latency --model tale
	$(BIN)/headrace bench throughput --model tale

bench-peers: $(DEV)
	$(BIN)/python -m benchmarks.peers $(ARGS)

lint: style types

style: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(DEV)
	$(BIN)/mypy
	$(BIN)/lint-imports

# $(MAKE) in the recipe itself would run all of it for `make --dry-run`, too.
TYPES = $(MAKE) --no-print-directory types

# Types and import contracts are checked beside the tests; what they print follows the tests' output. Compiled modules
# are kept whatever the environment says, or each of the servers that tests start would compile them again.
test: style
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(TYPES) >"$$log" 2>&1 & types=$$!; \
	trap 'kill $$types 2>/dev/null; exit 130' INT TERM; \
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(PARALLEL) --durations=25 $(ARGS); tests=$$?; \
	wait $$types; typed=$$?; cat "$$log"; \
	exit $$((tests ? tests : typed))

# What these tests need is required; HEADRACE_REQUIRE= (empty) skips those of what this machine lacks.
test-long: export HEADRACE_REQUIRE ?= native,isa,packages,npm,index,llamacpp
test-long: $(DEV) .venv/.llamacpp
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m long --timeout 3600 --durations=25 $(ARGS)

# GGUF models and their tokenizers are compared with llama.cpp's. Building it takes minutes.
.venv/.llamacpp: | $(DEV)
	$(BIN)/python -c 'import llama_cpp' 2>/dev/null || $(BIN)/python -m pip install -qq 'llama-cpp-python>=0.3.36,<0.4'
	@touch $@

sanitize: $(DEV)
	@tools/sanitize.sh

# Where there is no browser its tests are skipped, so `make test` does without one.
browser:
	@command -v chromium || { \
	    [ "$$(id -u)" = 0 ] || { echo 'make browser: ask an administrator for: apt-get install chromium' >&2; exit 1; }; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

native:
	@rm -f .venv/.installed-*
	@$(MAKE) --no-print-directory $(if $(wildcard .venv/.installed-dev-*),$(DEV),$(SERVER))

wheel: $(DEV)
	@tools/wheel.sh

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
