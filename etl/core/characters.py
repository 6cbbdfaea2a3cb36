"""Characters that a text may have and that cannot be kept."""

import re

# What neither UTF-8 nor Postgres' jsonb can hold.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# Controls and noncharacters, which JSON, XML or Postgres do not take. Tabs, line feeds and returns are none of them.
USELESS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")


def without_useless(text: str) -> str:
    return USELESS.sub("", text)
