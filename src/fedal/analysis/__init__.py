"""Theory instruments: what the FedAL paper assumes and bounds, measured. `docs/theory.md` explains each in words."""
