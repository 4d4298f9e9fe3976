"""What the server process and the engine process exchange: `messages`, and `connection` that carries them over a
socket.

Import from the modules; this package imports nothing by itself.
"""
