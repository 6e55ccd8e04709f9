"""The pure part of the console."""
