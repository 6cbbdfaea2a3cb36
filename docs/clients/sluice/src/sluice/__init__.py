"""The command line of Sluice: it knows the HTTP API, and nothing else of the service."""

__version__ = "0.1.0"
