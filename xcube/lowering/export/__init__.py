"""Programs as bytes: a versioned, checked format of jaxprs, made of a closed vocabulary of
primitives and a closed set of kinds of values. Reading it never executes what is in it.

sealing (magic, version, checksum) > wire (numbers, strings) > values, trees, jaxprs > functions
"""
