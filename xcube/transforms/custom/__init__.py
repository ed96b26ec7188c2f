"""Rules that users give to their functions: derivatives (`custom_jvp`, `custom_vjp`,
`custom_gradient`, `linear_call`), batches (`custom_vmap`), implicit derivatives of roots and linear
solves. Each kind of rule is one call-like primitive that holds the function's jaxpr and the rule;
`calling.py` is what the decorators share."""
