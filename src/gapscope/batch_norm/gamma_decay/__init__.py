"""Gamma decay equivalent to batch statistics: closed form, sampled, and measured."""
