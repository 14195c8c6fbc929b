"""A vision-language-action transformer inside a hard control deadline and a fixed memory budget."""

__version__ = "0.1.0"
