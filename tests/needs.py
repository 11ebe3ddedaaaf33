"""Reasons to skip a test here."""

import os

import pytest

needs_data = pytest.mark.skipif(
    os.environ.get("KVIB_DATA") is None,
    reason="KVIB_DATA does not name the folder of the data files",
)
