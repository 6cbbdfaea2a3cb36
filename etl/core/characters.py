"""Characters in texts that cannot be stored."""

import re

# Characters that UTF-8 or Postgres' jsonb cannot hold.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# Control characters and noncharacters that JSON, XML, or Postgres reject. Not tabs, line feeds, and returns.
USELESS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")


def without_useless(text: str) -> str:
    return USELESS.sub("", text)
