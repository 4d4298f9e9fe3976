"""Who may call, and how much.

- `hosts`: host names and web origins. `keys`, `key_check`, `key_file`: API keys.
- `traffic`: the rules, from the operator's options; `rate_limit`: requests and tokens a minute.

Import from the modules; this package imports nothing by itself.
"""
