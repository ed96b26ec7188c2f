"""Errors as values: a function that checks becomes one that also gives back its first error.

errors: what can go wrong, and the value that says so. check: the checks that users write, equations
with an effect. operations: what is checked of single equations. programs: the walk over a program
that takes the effect away and threads the value through, bodies of control flow included.
"""
