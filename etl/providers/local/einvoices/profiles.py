"""Profiles of e-invoices by their specification identifier (BT-24). Runs only in the reader process."""

import re
from dataclasses import dataclass

CORE = "urn:cen.eu:en16931:2017"
MAX_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile of a specification.

    `schema`: a name in `schemas`, or "" for the schema of the syntax. `has_lines` and `has_sums`: whether invoices have
    lines, and sums of lines and taxes. `is_extended`: whether sums may differ by one cent per part.
    """

    name: str
    schema: str = ""
    has_lines: bool = True
    has_sums: bool = True
    is_extended: bool = False
    has_only_prepaid: bool = True  # the amount due depends on no third-party payments
    is_known: bool = True
    is_en_16931: bool = True

    def schema_of(self, syntax: str) -> str:
        """Return the name of the schema in a syntax. UBL and ZUGFeRD 1 use one schema for all profiles."""
        return self.schema if self.schema and syntax == "cii" else syntax


# Patterns of identifiers, and their profiles. ZUGFeRD 2.0 and Factur-X name the same profiles differently.
FAMILY = r"(?:factur-x\.eu:1p0|zugferd\.de:2p[0-9])"
COMPLIANT, CONFORMANT = (rf"{CORE}[#:]{word}[#:](?:urn:)?" for word in ("compliant", "conformant"))
ZUGFERD_1 = "urn:ferd:CrossIndustryDocument:invoice:1p0"
PROFILES = (
    (rf"urn:{FAMILY}:minimum", Profile(name="MINIMUM", schema="minimum", has_lines=False, has_sums=False)),
    (rf"urn:{FAMILY}:basicwl", Profile(name="BASIC WL", schema="basicwl", has_lines=False)),
    (rf"(?:{COMPLIANT}|urn:){FAMILY}:basic", Profile(name="BASIC", schema="basic")),
    (rf"{COMPLIANT}{FAMILY}:(?:en16931|comfort)|{CORE}", Profile(name="EN 16931", schema="en16931")),
    (
        rf"(?:{COMPLIANT}|{CONFORMANT}){FAMILY}:extended",
        Profile(name="EXTENDED", schema="extended", is_extended=True),
    ),
    *(
        (rf"{ZUGFERD_1}:{name}", Profile(name=f"ZUGFERD 1 {name.upper()}", is_extended=True, is_en_16931=False))
        for name in ("basic", "comfort", "extended")
    ),
)
# Patterns of identifiers with a version, the names of the profiles, and whether they are extensions.
VERSIONED = (
    (r".*#conformant#urn:(?:xoev-de|xeinkauf\.de):kosit:extension:xrechnung_(\d\.\d)", "XRECHNUNG EXTENSION", True),
    (r".*#compliant#urn:(?:xoev-de|xeinkauf\.de):kosit:(?:standard:)?xrechnung_(\d\.\d)", "XRECHNUNG", False),
    (r".*urn:fdc:peppol\.eu:2017:poacc:billing:(?:international:\w+:)?(\d\.\d)", "PEPPOL BIS BILLING", False),
)


def profile_of(identifier: str) -> Profile:
    """Return the profile of an identifier. The name of an unknown profile is the identifier."""
    for pattern, profile in PROFILES:
        if re.fullmatch(pattern, identifier, re.IGNORECASE):
            return profile
    for pattern, name, is_extended in VERSIONED:
        if match := re.match(pattern, identifier, re.IGNORECASE):
            return Profile(name=f"{name} {match[1]}", is_extended=is_extended, has_only_prepaid=not is_extended)
    # National and sector specifications declare in their identifier that they are based on the standard.
    return Profile(
        name=identifier[:MAX_NAME], is_known=identifier.startswith(f"{CORE}#"), is_extended="#conformant#" in identifier
    )
