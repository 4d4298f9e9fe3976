"""Folders of packed weights: what `headrace pack` writes, and what is mapped at start.

`packed.weights` holds every matrix as the kernels read it, and tables and norms as arrays, each from a page on.
`packed.json` says what lies where: the format's version, the layout of matrices, compute and stored types, and for
each piece its form, place and SHA-256. Both are checked against each other and the file's size before anything is
mapped; the content of the pieces only by `data.verify`, because that reads all of it. A damaged piece can give wrong
numbers, and nothing worse: kernels take no address or size from it.

Reading order: header, match, data, store, folder.
"""
