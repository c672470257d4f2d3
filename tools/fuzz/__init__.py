"""Fuzzing of ``.bhc`` files."""
