"""How folders store codes. `base`: what all formats have. `integers` and `eight_bits`: the formats. `files`: folders
that have another name until they are whole."""
