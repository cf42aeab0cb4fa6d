"""The `fedal` command: one file per group of commands."""

from __future__ import annotations

from fedal.cli.app import app as app
from fedal.cli.app import main as main
