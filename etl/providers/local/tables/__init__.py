"""The structure of tables: columns and rows from ruling lines or from aligned words.

`table` builds one from its `columns`, the lines of its `cells`, and its `rows`. `alignment` finds tables that neither a
model nor ruling lines show.
"""
