"""The typed, frozen configuration of a run. Reading, checking and printing it does not import torch.

The user's values override the preset, which overrides the defaults. Method options belong in the table `[options]`; on
the command line and in Python they may also be given flat (`--set tau=3`, `Config(tau=3)`).
"""

from __future__ import annotations

from fedal.config.contradictions import REQUIREMENTS
from fedal.config.mistakes import unknown_setting
from fedal.config.reading import load_config, merge_settings, parse_assignments, read_settings, read_toml
from fedal.config.settings import ClientConfig, Config

__all__ = [
    "REQUIREMENTS", "ClientConfig", "Config", "load_config", "merge_settings", "parse_assignments", "read_settings",
    "read_toml", "unknown_setting",
]  # fmt: skip
