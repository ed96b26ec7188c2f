"""Control flow that is traced once and runs on the device: scan, while_loop, cond, switch,
fori_loop, map and associative_scan; a file for each primitive, its rules and its function.

bodies: Python functions become closed jaxprs, and jaxprs are cut. agreement: what a body gives must
fit what it takes. scan (scan_halves: its derivative), while_loop, cond: the three primitives. fori
and mapping: what is made of them.
"""
