"""Detection of the language of a document, and names of months."""

import calendar
import gettext
import re
import unicodedata
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import django

# Words that are frequent in every text of a language.
FREQUENT = {
    "en": "the and of to in is for with on by this that from are as be not at or which",
    "de": "der die das und ist für mit von zu den dem ein eine nicht auf wird sind bei nach bis wir sie",
    "fr": "le la les des du et est pour avec dans une sur par au aux pas nous vous ce qui",
    "es": "el la los las del y es para con en una por que al no se su como más",
    "it": "il la le di del della e è per con in una che al non si dal gli nel sono",
    "nl": "de het een en van is voor met op te dat niet aan bij uw zijn wordt door naar",
    "pt": "o a os as do da dos das e é para com em uma por que não ao se no na",
}
LANGUAGES: dict[str, list[str]] = {}
for code, words in FREQUENT.items():
    for word in words.split():
        LANGUAGES.setdefault(word, []).append(code)
MIN_WORDS = 3  # different frequent words, in lower case
LEAD = 1.3  # the minimum ratio of frequent words to those of the second language
MAX_TEXT = 200_000
LETTERS = re.compile(r"[^\W\d_]+")

# Languages whose numeric dates have the day first. English uses both orders.
DAY_FIRST = frozenset({"de", "fr", "es", "it", "nl", "pt"})

LOCALES = Path(django.__file__).parent / "conf" / "locale"
# Django's catalogs contain full names, names in dates (genitives), and two kinds of abbreviations.
CONTEXTS = ("alt. month", "abbrev. month")
ABBREVIATED = ("Jan.", "Feb.", "March", "April", "May", "June", "July", "Aug.", "Sept.", "Oct.", "Nov.", "Dec.")
# By month: names and abbreviations that Django does not have, and Roman numerals, except those of one letter, which are
# words.
MORE_MONTHS = (
    "jänner jaenner janv",
    "feber févr ii",
    "mar mrz maerz iii",
    "iv",
    "",
    "vi",
    "vii",
    "viii",
    "ix",
    "",
    "xi",
    "xii",
)


def plain(word: str) -> str:
    """Return a word in lower case without accents, because OCR and capitalization often lose them."""
    return "".join(
        letter for letter in unicodedata.normalize("NFD", word.casefold()) if not unicodedata.combining(letter)
    )


@cache
def months() -> dict[str, tuple[int, ...]]:
    """Return the possible months of each name, in all languages of Django. Some names mean different months in two
    languages."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for path in sorted(LOCALES.glob("*/LC_MESSAGES/django.mo")):
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)
        for number, name in enumerate(calendar.month_name):
            if number:
                short = catalog.gettext(name[:3].lower())
                longer = (catalog.pgettext(CONTEXTS[0], name), catalog.pgettext(CONTEXTS[1], ABBREVIATED[number - 1]))
                for each in (name, catalog.gettext(name), short, *longer):
                    found[plain(each).rstrip(".")].add(number)
    return {name: tuple(sorted(numbers)) for name, numbers in found.items()} | {
        plain(name): (number,) for number, names in enumerate(MORE_MONTHS, start=1) for name in names.split()
    }


def months_of(word: str) -> tuple[int, ...]:
    """Return the possible months of a name. In Hebrew, it may start with a preposition."""
    name = plain(word)
    return months().get(name) or months().get(name.removeprefix("ב"), ())


def language_of(text: str) -> str:
    """Return the code of a document's language, detected by frequent words, or "" if it is not certain. Several
    different words are required, because names such as Los Angeles contain frequent words too."""
    counts: Counter[str] = Counter()
    distinct: Counter[str] = Counter()
    for word, count in Counter(LETTERS.findall(text[:MAX_TEXT])).items():
        for code in LANGUAGES.get(word, ()):
            counts[code] += count
            distinct[code] += 1
    (first, count), (_, second) = (*counts.most_common(2), ("", 0), ("", 0))[:2]
    return first if distinct[first] >= MIN_WORDS and count >= LEAD * second else ""
