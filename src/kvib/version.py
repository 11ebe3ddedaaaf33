"""The version of kvib, read by the build too."""

__version__ = "0.2.0"
