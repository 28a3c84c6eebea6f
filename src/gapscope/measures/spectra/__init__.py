"""Spectra of weight matrices."""
