# `make test` on a fresh machine with Python 3.11+ and make: creates .venv, installs, tests.

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
EXTRAS := dev,export,cpu,experiments,cluster

.PHONY: setup test quickstart reproduce lint bench bench-gpu test-gpu docs clean

setup: .venv/installed

# Constraints, not a lock: pip still resolves, but only to the versions the tests ran with.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0 numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@

test: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

quickstart: setup
	$(BIN)/stn quickstart

# Every table anew, three seeds, on a GPU if there is one; stopped, it goes on. Those of photographs are trained
# where their data are here: make reproduce TABLES="svhn svhn-augmented birds" SEEDS=0,1
TABLES ?= distorted-mnist cluttered-mnist addition colocalisation volumes
SEEDS ?= 0,1,2
REPRODUCED ?= reproduced
SETTINGS ?=
# What `stn train` ends with where a run failed and the others are done: it stands in the table.
FAILED := 4

reproduce: setup
	for table in $(TABLES); do \
		$(BIN)/stn train $$table --seed $(SEEDS) --results $(REPRODUCED) --runs $(REPRODUCED)/runs $(SETTINGS) || { status=$$?; [ $$status = $(FAILED) ] || exit $$status; }; \
		$(BIN)/stn table $$table --results $(REPRODUCED) --out $(REPRODUCED)/$$table.md $(SETTINGS) || exit; \
	done

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks.run --out benchmarks/results/cpu.json
	$(BIN)/python -m benchmarks.data --out benchmarks/results/data_cpu.json

# On a machine with a GPU, with the Python and torch that are there; nothing is installed.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m benchmarks.run --suite gpu --out benchmarks/results/gpu.json
	PYTHONPATH=src $(PYTHON) -m benchmarks.data --device cuda --out benchmarks/results/data_gpu.json
	PYTHONPATH=src $(PYTHON) -m benchmarks.convolutions --device cuda --out benchmarks/results/convolutions_gpu.json
	PYTHONPATH=src $(PYTHON) -m benchmarks.steps --out benchmarks/results/steps_gpu.json
	PYTHONPATH=src $(PYTHON) -m benchmarks.volume_steps --out benchmarks/results/volume_steps_gpu.json
	PYTHONPATH=src $(PYTHON) -m benchmarks.house_numbers --out benchmarks/results/house_numbers_gpu.json
	PYTHONPATH=src $(PYTHON) -m benchmarks.birds --out benchmarks/results/birds_gpu.json

test-gpu:
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu_tests

docs: setup
	$(BIN)/python -m benchmarks.table benchmarks/results/cpu.json --into README.md
	$(BIN)/python -m benchmarks.table benchmarks/results/gpu.json --into docs/speed.md
	$(BIN)/python -m benchmarks.data --table benchmarks/results/data_cpu.json --into docs/data.md
	$(BIN)/python -m benchmarks.data --table benchmarks/results/data_gpu.json --into docs/data.md
	$(BIN)/python -m benchmarks.steps --table benchmarks/results/steps_gpu.json --into docs/training_speed.md
	$(BIN)/python -m benchmarks.convolutions --table benchmarks/results/convolutions_gpu.json --into docs/training_speed.md
	for page in house_numbers birds; do \
		result=benchmarks/results/$${page}_gpu.json; \
		test ! -e $$result || $(BIN)/python -m benchmarks.$$page --table $$result --into docs/$$page.md || exit; \
	done
	$(BIN)/stn table distorted-mnist --brief --out README.md > /dev/null
	$(BIN)/stn table distorted-mnist --out docs/table1.md > /dev/null
	$(BIN)/stn table cluttered-mnist --out docs/table1.md > /dev/null
	$(BIN)/stn table colocalisation --out docs/colocalisation.md > /dev/null
	$(BIN)/stn table addition --out docs/addition.md > /dev/null
	$(BIN)/stn table volumes --out docs/volumes.md > /dev/null
	$(BIN)/python -m benchmarks.volume_steps --table benchmarks/results/volume_steps_gpu.json --into docs/volumes.md
	$(BIN)/stn table svhn --out docs/house_numbers.md > /dev/null
	$(BIN)/stn table svhn-augmented --out docs/house_numbers.md > /dev/null
	$(BIN)/stn table birds --out docs/birds.md > /dev/null

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
