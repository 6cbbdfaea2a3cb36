"""The Python client of Sluice, and its command line.

from sluice import Client

with Client("https://sluice.example", token) as client:
    export = client.exports.create("flights", keys=["JFK"], date_from="2013-02-01", date_to="2013-02-28")
    export = client.exports.wait(export)
    client.exports.download(export, "flights.zip")
"""

from sluice.api import __version__
from sluice.client import AsyncClient, Client
from sluice.errors import (
    ChecksumMismatch,
    DocumentFailed,
    ExportFailed,
    InputError,
    InvalidResponse,
    InvalidUrl,
    NoFile,
    NotSignedIn,
    Problem,
    RuleNotFound,
    SluiceError,
    TargetExists,
    TimedOut,
    Unreachable,
)

__all__ = [
    "AsyncClient",
    "ChecksumMismatch",
    "Client",
    "DocumentFailed",
    "ExportFailed",
    "InputError",
    "InvalidResponse",
    "InvalidUrl",
    "NoFile",
    "NotSignedIn",
    "Problem",
    "RuleNotFound",
    "SluiceError",
    "TargetExists",
    "TimedOut",
    "Unreachable",
    "__version__",
]
