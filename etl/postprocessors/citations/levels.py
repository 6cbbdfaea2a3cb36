"""Levels of certainty of a citation, the most certain first.

- `exact`: the quote contains the value literally, as whole words or as a number with its sign.
- `normalized`: the quote contains the same number, date, or text in a different but unambiguous notation.
- `ambiguous`: the notation in the quote has several meanings, or several places may be meant.
- `quote`: the quote is in the document. The value (a boolean, an enum value, or free text) was not checked.
- `image`: the model read the value in a page image. The text does not contain it, so it was not checked.
- `computed`: the value is not in the document, but is the sum or the number of cited values.
- `not_found`: the value is not in the document, or not in the row of its item that the model quoted.

A value that a person has corrected has the level `corrected` instead, because that person is its source.
"""

EXACT, NORMALIZED, AMBIGUOUS, QUOTE, IMAGE, COMPUTED, NOT_FOUND = LEVELS = (
    *("exact", "normalized", "ambiguous", "quote", "image", "computed", "not_found"),
)
RANK = {level: rank for rank, level in enumerate(LEVELS)}
CORRECTED = "corrected"
