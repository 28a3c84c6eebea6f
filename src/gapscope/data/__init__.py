"""Readers, corruptions and downloads of the data sets."""
