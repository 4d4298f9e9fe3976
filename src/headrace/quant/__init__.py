"""How weights are stored in fewer bits: `format` names the formats; `int4` and `int8` specify their codes.

`format` needs the standard library only, because options and planning read it.
"""
