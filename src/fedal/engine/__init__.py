"""The round loop and the ways to run it. An engine never names a method."""
