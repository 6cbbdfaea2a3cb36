"""Pages of exports: the list, the form, and each export."""
