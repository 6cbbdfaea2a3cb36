"""Pages of rules: the list, the editor, and the versions."""
