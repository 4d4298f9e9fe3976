"""Models as data: a family turns a foreign config into a frozen spec; one decoder runs every spec."""
