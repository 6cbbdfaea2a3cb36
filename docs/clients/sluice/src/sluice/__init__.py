"""The command line of Sluice, a client of its HTTP API."""

__version__ = "0.1.0"
