"""What number formats and quantising cost in quality."""
