"""For people: the web page (`page`, files in `static/`), its feed (`live`), and the API's documentation
(`openapi`).

Import from the modules; this package imports nothing by itself.
"""
