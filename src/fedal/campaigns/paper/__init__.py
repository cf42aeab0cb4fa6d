"""The tables and figures of the FedAL paper (arXiv 2311.16584) by name: `fedal paper NAME`."""
