"""A study: one row of a table, trained and measured; ``experiments/run.py`` runs it."""
