"""Who may call, how much, and what each request is charged.

- `hosts`: host names and web origins. `keys`, `key_check`, `key_file`: API keys.
- `traffic`: the rules, from the operator's options; `rate_limit`: requests and tokens a minute.
- `gate`: the only way from a route to the engine: bounds, admission and charges of a request.

Import from the modules; this package imports nothing by itself.
"""
