"""How weights are stored in fewer bits: `format` says what a format is; one file each holds what it means.

`format` needs the standard library only, because options and planning read it.
"""
