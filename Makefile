# Maquette. `make repro` rebuilds the whole study, `make test` runs the tests; both make .venv first.
#
#   make repro                   the profile that params.yaml names, independent training runs side by side
#   make repro PROFILE=smoke     another profile: laptop, smoke, gpu or cluster;  JOBS=1 for one run at a time
#   make test                    the tests;  make lint: linters and type checker;  make check: both
#                                (without those that take minutes: make test ARGS="-m 'not distributed and not pipeline'")
#   make setup TORCH=cuda        PyTorch's CUDA build, kept from then on; TORCH=cpu goes back
#                                (TORCH=cu126 or any other build that `uv pip install --torch-backend` knows)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The stamp remembers which PyTorch was chosen, so that a later `make repro` does not swap it.
CHOSEN := $(patsubst $(VENV)/installed-%,%,$(firstword $(wildcard $(VENV)/installed-*)))
TORCH ?= $(or $(CHOSEN),cpu)
STAMP := $(VENV)/installed-$(TORCH)

# uv does not read pip's find-links; hand over what the machine gave to pip, so that a local CPU torch is seen.
UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_FIND_LINKS

# The study is many short processes: without bytecode in .venv each would compile PyTorch and Lightning anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup repro test lint check

repro: $(STAMP)
	@$(BIN)/maquette repro $(if $(PROFILE),--profile $(PROFILE)) $(if $(JOBS),--jobs $(JOBS))

test: $(STAMP)
	$(BIN)/pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt install.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh install.sh "$(TORCH)"
	@touch "$@"
