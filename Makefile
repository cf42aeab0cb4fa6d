# demo, quick, test, check, bench: what a person types. Each sets up .venv by itself when it is missing or stale.
PYTHON ?= python3.11
BIN := .venv/bin
USE := .venv/.installed-to-use
WORK := .venv/.installed-to-work
# --no-compile: Python compiles what is imported when it is first imported, and has to keep that for the next process;
# all of torch in advance takes half a minute.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt
# Two files at a time: many tests wait for processes or deadlines. Tests of a file share what they set up.
TEST := $(BIN)/python -m pytest -n 2 --dist loadfile -m

.PHONY: demo quick test check lint format soak bench clean

demo: $(USE)
	$(BIN)/fedal compare --methods local,fedmd,fedal --dataset digits --iterations 200 --seeds 3 --out runs/demo

test: $(WORK)
	$(TEST) "not soak"

quick: lint
	$(TEST) "not soak and not processes"

check: lint
	$(TEST) "not soak"

lint: $(WORK)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(WORK)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: $(WORK)
	$(BIN)/python -m pytest -m soak -s

bench: $(WORK)
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.latency

clean:
	rm -rf .venv

$(USE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e '.[report]'
	touch $@

$(WORK): $(USE)
	$(INSTALL) -e '.[dev]'
	touch $@
