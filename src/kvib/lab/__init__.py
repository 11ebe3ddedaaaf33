"""Experiment files → runs → tables → figures → report."""
