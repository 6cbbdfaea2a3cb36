"""Recognition of table structure: columns and rows, from ruling lines or from aligned words.

`table` builds a table from its `columns`, the lines of its `cells`, and its `rows`. `alignment` finds tables that
neither the layout model nor ruling lines indicate.
"""
