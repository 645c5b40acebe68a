# Everything a newcomer needs: `make demo` and `make test`. Each target makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
SOAK_MINUTES ?= 4

.PHONY: help setup system demo test soak check format bench clean

help:            ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 12

setup: $(STAMP)  ## make .venv with the package and all that its tests need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV) || { echo "python3 needs its venv module (Debian: apt-get install python3-venv)"; exit 1; }
	$(BIN)/pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable ".[dev]"
	touch $@

system: $(STAMP) ## SLURM and network tools for the tests that need them (only as root on Debian; otherwise those tests skip)
	@tests/system/install

demo: $(STAMP)   ## two workers learn to read handwritten digits
	$(BIN)/unisono train examples/digits.py -n 2

test: system     ## all tests that belong to every change (about 12 minutes on two cores)
	$(BIN)/python -m tests.system.sessions -m "not gpu and not soak"

soak: system     ## faults, fuzzing, large sizes: about an hour (SOAK_MINUTES=1 for each is a try, 30 a night)
	$(PYTEST) -m "soak" --soak-minutes $(SOAK_MINUTES)

check: system    ## format, lint, strict types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.system.sessions -m "not gpu and not soak"

format: $(STAMP) ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: system    ## measure against peers, side by side; writes docs/results/
	$(BIN)/python -m bench.collectives
	$(BIN)/python -m bench.train
	$(BIN)/python -m bench.checkpoint
	$(BIN)/python -m bench.shards
	$(BIN)/python -m bench.invariance
	$(BIN)/python -m bench.exchange
	$(BIN)/python -m bench.keras
	$(BIN)/python -m bench.tune
	$(BIN)/python -m bench.horovod
	@if [ "$$(id -u)" = 0 ]; then $(BIN)/python -m bench.algorithms && $(BIN)/python -m bench.overlap; \
	else echo "bench.algorithms and bench.overlap make network name spaces and need root"; fi
	@echo "those that need the files of MNIST are run by hand: python -m bench.asynchronous (and --link), bench.elastic, bench.servers, bench.many_workers, bench.time_to_accuracy --mnist DIR; bench.horovod_programs --checkout DIR --mnist DIR (Horovod's own tests and examples); bench.programs_of_others --checkout DIR (examples of Keras, PyTorch, Lightning, Optuna, TensorFlow); and, without files, python -m bench.jets (and --accuracy); on a machine with a GPU python -m bench.gpu, bench.time_to_accuracy_gpu --mnist DIR (then --page FILE anywhere)"

clean:           ## remove what make made
	rm -rf $(VENV) .venv-bench dist build
