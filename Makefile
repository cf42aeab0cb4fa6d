# Main targets: demo, quick, test, check, docs, bench. Each sets up .venv if it is missing or outdated.
PYTHON ?= python3.11
BIN := .venv/bin
USE := .venv/.installed-to-use
WORK := .venv/.installed-to-work
# --no-compile: compiling all of torch in advance takes half a minute. Python compiles modules on their first import
# instead, and must be allowed to cache the result.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt
# Two files in parallel, because many tests wait for processes or deadlines. Tests in one file share fixtures.
TEST := $(BIN)/python -m pytest -n 2 --dist loadfile -m

.PHONY: demo quick test check lint format soak bench docs lowest lock wheel clean

demo: $(USE)
	$(BIN)/fedal compare --methods local,fedmd,fedal,fedlift --dataset digits --partition dirichlet-client-k --iterations 200 --seeds 3 --out runs/demo

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

# Warnings are errors; the build needs no network. -E: what is generated from the code is never taken from a cache.
docs: $(WORK)
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html -c docs/site . build/docs
	@echo "$(CURDIR)/build/docs/index.html"

# The quick tests with the lowest versions that pyproject.toml allows. Old packages may warn about each other, and
# numpy 1.26 leaves a zip file open when the disk is full.
lowest:
	$(PYTHON) -m venv --clear .venv-lowest
	$(PYTHON) -m tests.lowest > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --no-compile --quiet --disable-pip-version-check \
	  -c .venv-lowest/constraints.txt -e '.[report,tensorboard,tune,pandas,parquet,deploy,onnx,xgboost,lightgbm,jax,ray,docs]' \
	  pytest pytest-timeout pytest-xdist hypothesis selenium
	.venv-lowest/bin/python -m pytest -n 2 --dist loadfile -W default::DeprecationWarning \
	  -W default::pytest.PytestUnraisableExceptionWarning -m "not soak and not processes"

# The exact versions in .venv. Run it after `make check` has passed with them.
lock: $(WORK)
	$(BIN)/python -m tests.lock > requirements-dev.lock.new
	mv requirements-dev.lock.new requirements-dev.lock

wheel:
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean:
	rm -rf .venv .venv-lowest

$(USE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e '.[report]'
	touch $@

$(WORK): $(USE)
	$(INSTALL) -e '.[dev]'
	touch $@
