"""Constraints that a program checks on the final text of an answer, each with a description and examples."""
