"""Commands that write text in the terminal."""
