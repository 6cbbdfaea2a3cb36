"""Rules for people: the list, the editor, and what a rule said in each version."""
