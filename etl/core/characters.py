"""Characters that must be removed from text before it is stored."""

import re

# Characters that UTF-8 or Postgres' jsonb cannot hold.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# Control characters and noncharacters that JSON, XML, or Postgres reject. Tabs and line ends are kept.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")


def remove_control_characters(text: str) -> str:
    return FORBIDDEN.sub("", text)
