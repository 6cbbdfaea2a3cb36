"""Currencies, units, scale words, and words for signs that occur beside numbers."""

import re
from decimal import Decimal
from functools import lru_cache

CODES = (
    *("AED", "ARS", "AUD", "BGN", "BRL", "CAD", "CHF", "CLP", "CNY", "COP", "CZK", "DKK", "EGP", "EUR", "GBP"),
    *("HKD", "HUF", "IDR", "ILS", "INR", "JPY", "KRW", "MAD", "MXN", "MYR", "NOK", "NZD", "PEN", "PHP", "PLN"),
    *("QAR", "RMB", "RON", "RUB", "SAR", "SEK", "SGD", "THB", "TND", "TRY", "TWD", "UAH", "USD", "VND", "ZAR"),
)
SYMBOLS = "$¢-¥֏؋৲৳૱௹฿៛\u20a0-\u20cf﷼"  # characters of the Unicode category Sc
NAMES = "Euro Euros euro euros dollars Dollar Fr. Rs. Rs kr. kr zł Kč Ft lei"
# Currencies with a scale: `T€` and `TEUR` are thousands, `M€` millions.
SCALED = {
    **dict.fromkeys(("T€", "TEUR", "TCHF", "TUSD", "K€", "k€", "KEUR", "kEUR"), Decimal(1_000)),
    **dict.fromkeys(("M€", "MEUR", "m€"), Decimal(1_000_000)),
    **dict.fromkeys(("Md€", "Mrd€", "bn€"), Decimal(1_000_000_000)),
}
CURRENCY = "|".join(
    [
        *map(re.escape, sorted([*SCALED, *CODES, *NAMES.split()], key=len, reverse=True)),
        rf"(?:US|A|C|R|S|NZ|HK|MX)?[{SYMBOLS}]",
    ]
)
# Currencies in prose, in upper or lower case.
CURRENCY_WORD = (
    "euros?|dollars?|d[oó]lar(?:es)?|dollari|pounds?|sterling|pfund|francs?|franken|pesos?|yen|yuan|rupees?|rupien"
    "|reais|real|cents?|centavos|c[eé]ntimos|centimes|pence"
)
# The last words of numbers that are written out, in the languages of `languages.FREQUENT`.
NUMBER_WORD = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    "|(?:twen|thir|for|fif|six|seven|eigh|nine)ty"
    r"|\w{0,40}(?:hundert|tausend)(?:(?:und)?(?:eins?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|elf|zwölf))?"
    r"|\w{0,40}(?:zwan|vier|fünf|sech|sieb|acht|neun)zig|\w{0,40}drei(?:ß|ss)ig|\w{0,20}zehn"
    "|zwei|drei|vier|fünf|sechs|sieben|acht|neun|elf|zwölf"
    "|dix|vingts?|trente|(?:quar|cinqu|soix)ante|cent"
    "|diez|veinte|(?:tre|cuare|cincue|sese|sete|oche|nove)nta|cien(?:to)?|(?:dos|tres|cuatro|seis|ocho)cientos|quinientos"
    r"|dieci|venti|(?:tre|quara|cinqua|sessa|setta|otta|nova)nta|\w{0,20}cento|\w{0,40}mila"
    r"|tien|\w{0,40}(?:honderd|duizend)|(?:twin|der|veer|vijf|zes|zeven|tach|negen)tig"
    "|dez|vinte|(?:tri|quare|cinque|sesse|sete|oite|nove)nta|cem|(?:duz|trez|quatroc|quinh|seisc|setec|oitoc|novec)entos"
)
PERCENT = r"[%‰٪]|(?:prozent|per ?cent|pour cent|por ciento|por cento|per cento|procent)(?![^\W_])"
UNITS = (
    "kg mg µg μg g t lb lbs oz km cm mm dm m ft in l L ml cl hl m² m³ km² cm² cm³ m2 m3 qm cbm ha h hrs min s sec ms d "
    "kWh MWh Wh kW W V A mA Hz kHz MHz GHz °C °F ° K KB kB MB GB TB px dpi pt x X pcs pc St Stk Stück Std Uhr "
    "st nd rd th er ème º ª"
)
UNIT = "|".join(map(re.escape, sorted(UNITS.split(), key=len, reverse=True)))

# ---- Signs ----------------------------------------------------------------------------------------------------------
MINUS_WORDS = frozenset(
    re.findall(r"\w+", "minus moins menos meno negative negativ neg less abzüglich abzgl cr dr マイナス")
)
SIDES = frozenset(re.findall(r"\w+", "cr dr db soll haben credit debit debet avoir negative negativ overdrawn"))
THAN = "than|als|que"  # after a word for minus, these mean a comparison

# ---- Scales ---------------------------------------------------------------------------------------------------------
ONE, THOUSAND, MILLION, MILLIARD, BILLION = (Decimal(10) ** power for power in (0, 3, 6, 9, 12))
MYRIAD, LAKH, CRORE, HUNDRED_MILLION, TRILLION = (Decimal(10) ** power for power in (4, 5, 7, 8, 18))
END = r"[^\W\d_]{0,4}"  # an inflectional ending
# Scale words and their possible meanings. Words with the meaning 1 may also be other words: `Mill Street`, `Bio`.
WORDS: dict[str, tuple[Decimal, ...]] = {
    r"mil millones|mil milh(?:ão|ões)|bilh(?:ão|ões)|mrd|mld|mlrd|bn|tỷ|tỉ|अरब": (MILLIARD,),
    rf"mil(?:l?i|ij|j|y)a{END}|мил+иард{END}|мільярд{END}|млрд|δισ{END}|مليار{END}|میلیارد|מיליארד": (MILLIARD,),
    rf"mil(?:l?i|ij|j|y)[oóõ]{END}|mill[oó]n(?:es)?|milh(?:ão|ões)|mio|mln|mn|juta|triệu": (MILLION,),
    rf"мил+ион{END}|мільйон{END}|млн|εκατ(?:ομμ[υύ]ρι{END})?|مليون{END}|ملايين|میلیون|מיליון|ล้าน": (MILLION,),
    r"thousands?|thou|tausend|tsd|mille|mila|mil|mii|duizend|tusen|tusind|tys|tis|ezer|ribu|nghìn|ngàn": (THOUSAND,),
    rf"tuhat{END}|тыс(?:яч{END})?|тис(?:яч{END})?|хиляди|χιλι[άα]δες|ألف|آلاف|هزار|אלף|हज़ार|พัน": (THOUSAND,),
    r"billionen|bill[oó]n|billones|兆": (BILLION,),
    rf"bil(?:l?i|ij|j|y)[oóõ]{END}": (MILLIARD, BILLION),
    rf"tril(?:l?i|ij|j|y)[oóõu]{END}|трил+ион{END}|трлн": (BILLION, TRILLION),
    r"lakhs?|लाख|แสน": (LAKH,),
    r"crores?|करोड़": (CRORE,),
    r"万|萬|만|หมื่น": (MYRIAD,),
    r"億|亿|억": (HUNDRED_MILLION,),
    r"(?-i:MM)|mill": (ONE, MILLION),
    r"bin|[千천]": (ONE, THOUSAND),
    r"bio|tn|조": (ONE, BILLION),
    **{
        f"{few}{many}": (ONE, factor * scale)
        for few, factor in (("[十십]", Decimal(10)), ("[百백]", Decimal(100)), ("[千천]", THOUSAND))
        for many, scale in (("[万萬만]", MYRIAD), ("[億亿억]", HUNDRED_MILLION))
    },
    r"[百백]|hundred|hundert": (ONE, Decimal(100)),
    r"dozen|dutzend": (ONE, Decimal(12)),
    "basis points?|bps?": (ONE, Decimal("0.0001")),
}
# Words in notes about the scale of all amounts.
AMOUNTS = (
    "amounts?|figures|values|numbers|data|dollars|expressed|stated|presented|reported|angaben|beträge|werte|zahlen"
    "|montants?|chiffres|valeurs|importes?|cifras|valores|importi|valori|bedragen|kwoty|belopp"
)
# Letters that are scales beside a currency, but may be units elsewhere.
LETTERS = {"k": THOUSAND, "m": MILLION, "b": MILLIARD}
WORD_END = r"(?![^\W_\u0e00-\u0eff\u2e80-\uffff])"
SCALE = rf"(?:{'|'.join(WORDS)}){WORD_END}"
MEANINGS = [(re.compile(pattern, re.IGNORECASE), numbers) for pattern, numbers in WORDS.items()]


@lru_cache(maxsize=20_000)
def scales_of(word: str, language: str) -> tuple[Decimal, ...]:
    """Return the possible meanings of a scale word in a document of this language, or in all languages for ""."""
    word = " ".join(word.split())
    found = next(numbers for pattern, numbers in MEANINGS if pattern.fullmatch(word))
    if len(found) == 1 or found[0] == ONE or not language:
        return found
    return found[:1] if language == "en" else found[1:]  # in other languages, a billion is a million millions
