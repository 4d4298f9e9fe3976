"""/v1/responses: `route`, what a request may hold (`schemas`), the `conversation` that it continues, the `builder` of
its answer, and the `store` of earlier ones.

Import from the modules; this package imports nothing by itself.
"""
