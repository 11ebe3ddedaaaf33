"""Experiments: a file is read, its runs are carried out, collected into a table and drawn."""
