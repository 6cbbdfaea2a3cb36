"""Numbers, dates, and labels in three languages: formatting for documents, and parsing for the reader."""

import datetime as dt
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

THIN = "\u202f"  # groups digits in French


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language. `labels`: the printed name of each member of a result."""

    code: str
    decimal: str
    grouping: str
    months: tuple[str, ...]
    page: str  # the footer
    carried: str
    brought: str
    yes: str
    no: str
    item: str
    labels: Mapping[str, str]

    def number(self, value: float, places: int = 2) -> str:
        text = f"{abs(value):,.{places}f}".translate({ord(","): self.grouping, ord("."): self.decimal})
        return f"-{text}" if value < 0 else text

    def date(self, day: dt.date) -> str:
        if self.code == "de":
            return f"{day:%d.%m.%Y}"
        return f"{day.day} {self.months[day.month - 1]} {day.year}"


ENGLISH = Language(
    code="en",
    decimal=".",
    grouping=",",
    months=(
        *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October"),
        "November",
        "December",
    ),
    page="Page {} of {}",
    carried="Carried forward",
    brought="Brought forward",
    yes="yes",
    no="no",
    item="Item",
    labels={
        "sku": "Article",
        "description": "Description",
        "quantity": "Quantity",
        "unit_price": "Unit price",
        "amount": "Amount",
        "number": "Number",
        "issue_date": "Issue date",
        "total": "Total",
        "date": "Date",
        "text": "Details",
        "balance": "Balance",
        "account": "Account",
        "opening_balance": "Opening balance",
        "closing_balance": "Closing balance",
        "location": "Location",
        "stock": "Stock",
        "value": "Value",
        "warehouse": "Warehouse",
        "region": "Region",
        "site": "Site",
        "clause": "Clause",
        "obligation": "Obligation",
        "party": "Party",
        "due": "Due",
        "contract_value": "Contract value",
        "supplier/name": "Supplier",
        "supplier/tax_id": "Supplier's tax number",
        "renewal": "Automatic renewal",
    },
)
GERMAN = Language(
    code="de",
    decimal=",",
    grouping=".",
    months=(
        *("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober"),
        "November",
        "Dezember",
    ),
    page="Seite {} von {}",
    carried="Übertrag",
    brought="Übertrag von Vorseite",
    yes="ja",
    no="nein",
    item="Artikel",
    labels={
        "sku": "Artikelnr.",
        "description": "Bezeichnung",
        "quantity": "Menge",
        "unit_price": "Einzelpreis",
        "amount": "Betrag",
        "number": "Nummer",
        "issue_date": "Ausstellungsdatum",
        "total": "Gesamtbetrag",
        "date": "Datum",
        "text": "Buchungstext",
        "balance": "Saldo",
        "account": "Konto",
        "opening_balance": "Anfangssaldo",
        "closing_balance": "Endsaldo",
        "location": "Lagerort",
        "stock": "Bestand",
        "value": "Wert",
        "warehouse": "Lager",
        "clause": "Ziffer",
        "obligation": "Leistung",
        "party": "Partei",
        "due": "Fällig",
        "contract_value": "Vertragswert",
        "supplier/name": "Lieferant",
        "supplier/tax_id": "Steuernummer des Lieferanten",
        "renewal": "Automatische Verlängerung",
    },
)
FRENCH = Language(
    code="fr",
    decimal=",",
    grouping=THIN,
    months=(
        *("janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre", "octobre"),
        "novembre",
        "décembre",
    ),
    page="Page {} sur {}",
    carried="À reporter",
    brought="Report",
    yes="oui",
    no="non",
    item="Article",
    labels={
        "sku": "Référence",
        "description": "Désignation",
        "quantity": "Quantité",
        "unit_price": "Prix unitaire",
        "amount": "Montant",
        "number": "Numéro",
        "issue_date": "Date d'émission",
        "total": "Total général",
        "date": "Jour",
        "text": "Libellé",
        "balance": "Solde",
        "account": "Compte",
        "opening_balance": "Solde initial",
        "closing_balance": "Solde final",
        "location": "Emplacement",
        "stock": "En stock",
        "value": "Valeur",
        "warehouse": "Entrepôt",
        "clause": "Clause n°",
        "obligation": "Prestation",
        "party": "Partie",
        "due": "Échéance",
        "contract_value": "Valeur du contrat",
        "supplier/name": "Fournisseur",
        "supplier/tax_id": "Numéro fiscal du fournisseur",
        "renewal": "Reconduction tacite",
    },
)
LANGUAGES = (ENGLISH, GERMAN, FRENCH)

# ---- Contents, by language ------------------------------------------------------------------------------------------
GOODS = {
    "en": ("Steel bracket", "Copper cable", "Hinge", "Pump seal", "Filter, fine", "Workbench", "Lamp, dimmable"),
    "de": ("Stahlwinkel", "Kupferkabel", "Scharnier", "Pumpendichtung", "Filter, fein", "Werkbank", "Leuchte, dimmbar"),
    "fr": ("Équerre en acier", "Câble en cuivre", "Charnière", "Joint de pompe", "Filtre fin", "Établi", "Lampe"),
}
TRANSACTIONS = {
    "en": ("Card payment", "Transfer in", "Standing order", "Refund", "Fee"),
    "de": ("Kartenzahlung", "Gutschrift", "Dauerauftrag", "Erstattung", "Entgelt"),
    "fr": ("Paiement par carte", "Virement reçu", "Virement permanent", "Remboursement", "Frais"),
}
DUTIES = {
    "en": ("Delivery of module", "Training of staff for module", "Acceptance test of module", "Support of module"),
    "de": ("Lieferung des Moduls", "Schulung zum Modul", "Abnahmetest des Moduls", "Wartung des Moduls"),
    "fr": ("Livraison du module", "Formation au module", "Recette du module", "Maintenance du module"),
}
PARTIES = {"en": ("Supplier", "Customer"), "de": ("Auftragnehmer", "Auftraggeber"), "fr": ("Prestataire", "Client")}
SELLERS = {"en": "Northwind Example Ltd", "de": "Beispiel Handel GmbH", "fr": "Exemple Négoce SARL"}

# ---- Parsing --------------------------------------------------------------------------------------------------------
MEMBERS = {label.casefold(): member for language in LANGUAGES for member, label in language.labels.items()}
CARRIED = tuple(word.casefold() for language in LANGUAGES for word in (language.carried, language.brought))
MONTHS = {month.casefold(): number for language in LANGUAGES for number, month in enumerate(language.months, 1)}
BOOLEANS = {language.yes: True for language in LANGUAGES} | {language.no: False for language in LANGUAGES}
DECIMALS = re.compile(r"\d([.,])\d{2}(?![\d.,])")
# The words of each language's labels, and the word between the numbers of "Page 1 of 2".
WORDS = {
    language.code: {"of" if language.code == "en" else "von" if language.code == "de" else "sur"}
    | {word for label in language.labels.values() for word in label.casefold().split()}
    for language in LANGUAGES
}


def decimal_sign(text: str) -> str:
    """Detect the decimal sign of a text, from its amounts or, if they do not decide, from its words."""
    signs = DECIMALS.findall(text)
    if signs.count(".") != signs.count(","):
        return max(".,", key=signs.count)
    words = text.casefold().split()
    counts = Counter({".": 0, ",": 0})
    for language in LANGUAGES:
        counts[language.decimal] += sum(word in WORDS[language.code] for word in words)
    return max(counts, key=lambda sign: counts[sign])


def read_number(text: str, decimal: str) -> float | int | None:
    """Parse a printed number. Parentheses, or a minus before or after the number, make it negative."""
    digits = re.sub(rf"[^\d{re.escape(decimal)}]", "", text)
    if not re.search(r"\d", digits) or digits.count(decimal) > 1:
        return None
    is_negative = text.strip().startswith(("-", "(", "−")) or bool(re.search(r"\d\s?-(?:\s*[A-Z]{3})?$", text.strip()))
    value = float(digits.replace(decimal, ".")) if decimal in digits else int(digits)
    return -value if is_negative else value


def read_date(text: str) -> str | None:
    """Parse a printed date. Return it as YYYY-MM-DD. The day comes first in all documents."""
    parts = text.strip().rstrip(".").replace("/", ".").replace(" ", ".").split(".")
    parts = [part for part in parts if part]
    if len(parts) != 3:
        return None
    month = MONTHS.get(parts[1].casefold()) or (int(parts[1]) if parts[1].isdecimal() else 0)
    if not (parts[0].isdecimal() and parts[2].isdecimal() and 1 <= month <= 12):
        return None
    return f"{int(parts[2]):04}-{month:02}-{int(parts[0]):02}"
