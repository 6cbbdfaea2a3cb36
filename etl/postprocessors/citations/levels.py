"""Levels of certainty of a citation, the most certain first.

- `exact`: the quote contains the value as it is written, as whole words or numbers with their sign;
- `normalized`: it contains the same number, date, or text in another notation that has one meaning;
- `ambiguous`: it contains the value in a notation with several meanings, or several places may be meant;
- `quote`: the quote is in the document. The value (a boolean, an enum value, or free text) was not checked;
- `image`: the model read the value in the image of the page. The text does not have it, so it was not checked;
- `computed`: the value is not in the document, but it is the sum or number of cited values;
- `not_found`: the value is not in the document, or not in the row of its item that the model quoted.

A value that a person has corrected has none of these, but `corrected`: its source is that person.
"""

EXACT, NORMALIZED, AMBIGUOUS, QUOTE, IMAGE, COMPUTED, NOT_FOUND = LEVELS = (
    *("exact", "normalized", "ambiguous", "quote", "image", "computed", "not_found"),
)
RANK = {level: rank for rank, level in enumerate(LEVELS)}
CORRECTED = "corrected"
